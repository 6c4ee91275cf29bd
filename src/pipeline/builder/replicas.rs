//! What can be chosen about replicas, and about the sums that they share.

use super::PipelineBuilder;
use crate::torch::OuterStep;

impl PipelineBuilder {
    /// So many copies of the whole pipeline, each on as many devices (data parallelism); 1 by
    /// default. A power of two, at most the leaves of the [`tree`](Self::tree), and a divisor of
    /// the number of devices.
    ///
    /// [`micro_batches`](Self::micro_batches) stays the mini-batch's number M: replica r of d has
    /// those from ⌊rM/d⌋ to ⌊(r+1)M/d⌋ - 1, which are the leaves from rk/d on of the tree of k
    /// leaves. When a stage's last backward is done, its copies exchange their sums (a
    /// reduce-scatter and an all-gather, whole parameters each), and all go on with the sum of
    /// all. Parameters, gradients and optimizer states are in every replica, with the same bits.
    ///
    /// *Determinism*: the bits are those of one pipeline with the same mini-batch, M and k,
    /// whatever d is.
    ///
    /// A layer whose forward moves a buffer, micro-batch after micro-batch, as
    /// [`nn::BatchNorm`](tch::nn::BatchNorm) does, fails the step: no replica sees all
    /// micro-batches. [`layers::BatchNorm`](crate::layers::BatchNorm) does not.
    ///
    /// ```
    /// use gpipe::{Pipeline, Sequential, tch::{Device, Kind, Tensor, nn}};
    ///
    /// let build = |replicas: usize| {
    ///     let model = Sequential::new()
    ///         .layer("hidden", |p| nn::linear(p, 8, 16, Default::default()))
    ///         .layer("head", |p| nn::linear(p, 16, 2, Default::default()));
    ///     let devices = vec![Device::Cpu; 2 * replicas];
    ///     let builder = Pipeline::builder(model).devices(&devices).micro_batches(4);
    ///     builder.tree(2).replicas(replicas).threads_per_stage(1).build()
    /// };
    /// let x = Tensor::randn([8, 8], (Kind::Float, Device::Cpu));
    /// let y = Tensor::zeros([8], (Kind::Int64, Device::Cpu));
    /// let loss = |out: &Tensor, y: &Tensor| out.cross_entropy_for_logits(y);
    /// let (mut one, mut two) = (build(1)?, build(2)?);
    /// one.train_step(&x, &y, loss)?;
    /// two.train_step(&x, &y, loss)?;
    /// for ((_, one), (_, two)) in one.parameters()?.iter().zip(&two.parameters()?) {
    ///     assert_eq!(one.grad(), two.grad());
    /// }
    /// # Ok::<(), gpipe::Error>(())
    /// ```
    #[doc(alias = "data parallel")]
    #[doc(alias = "DDP")]
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Whether each parameter's gradient and optimizer state are in one of the
    /// [`replicas`](Self::replicas) alone (ZeRO-1, Rajbhandari et al. 2020, by whole parameters);
    /// not, by default. Of no consequence without replicas.
    ///
    /// Of each stage's parameters a replica owns some, so that all own about as many bytes: the
    /// largest goes first, to the replica that owns least (frozen ones count, too). An
    /// [`Optimizer`](crate::Optimizer) keeps its state of a parameter with the owner, which
    /// updates it and gives the new weights to the other replicas.
    ///
    /// *Memory*: optimizer states take about 1/d of a device's memory that they take without, and
    /// so do gradients between steps; no less than the stage's largest parameter takes. *Traffic*
    /// between replicas is the same: new weights go where sums of gradients went, but behind
    /// the update instead of in the step.
    ///
    /// *Determinism*: no bit changes. Checkpoints have the same tensors, some in files of their
    /// own, and are loaded by pipelines with any number of replicas, sharded or not.
    ///
    /// [`Pipeline::parameters`](crate::Pipeline::parameters) has a parameter's gradient in the
    /// process of the owner alone.
    #[doc(alias = "ZeRO")]
    #[doc(alias = "ZeroRedundancyOptimizer")]
    #[doc(alias = "distributed optimizer")]
    #[must_use]
    pub fn shard_optimizer(mut self, shard: bool) -> Self {
        self.shard_optimizer = shard;
        self
    }

    /// Has each of the [`replicas`](Self::replicas) train alone for so many steps, a *round*, and
    /// then brings them together by an outer step (`DiLoCo`, Douillard et al. 2023,
    /// arXiv 2311.08105); without this they exchange gradients in every step. For replicas with slow
    /// links between them: what travels is 1/`steps` of that.
    ///
    /// Within a round each replica's loss is that of its own samples, its gradients are its own and
    /// are clipped by their own norm, and so are weights and optimizer states. The last update of a
    /// round is followed by the outer step: the mean of what the replicas' weights have moved by,
    /// added up in a balanced binary tree, is the gradient of an SGD with Nesterov momentum (see
    /// [`outer`](Self::outer)), and all go on from the weights that this comes to. Buffers of
    /// floating-point numbers become the replicas' mean, others those of replica 0. Optimizer
    /// states stay each replica's own. A step's loss and norm are the means over the replicas.
    ///
    /// What is counted are updates ([`Optimizer::step`](crate::Optimizer::step)). Within a round
    /// inference uses each replica's own weights, and `load`, `freeze` and `unfreeze` are refused.
    ///
    /// *Determinism*: the same bits in every run, whatever cut, schedule and processes are; but
    /// they depend on the number of replicas and on `steps`, unlike without.
    ///
    /// *Memory*: in each replica about 2/d of the bytes of its parameters (the weights at the
    /// round's begin, and the momentum, each with the parameter's owner as with
    /// [`shard_optimizer`](Self::shard_optimizer), which cannot be used with it).
    #[doc(alias = "DiLoCo")]
    #[doc(alias = "local SGD")]
    #[must_use]
    pub fn local_steps(mut self, steps: usize) -> Self {
        self.local_steps = Some(steps);
        self
    }

    /// Learning rate and Nesterov momentum of the outer step of
    /// [`local_steps`](Self::local_steps); 0.7 and 0.9 by default. With 1 and 0 it is the mean of
    /// the replicas' weights.
    #[must_use]
    pub fn outer(mut self, learning_rate: f64, momentum: f64) -> Self {
        self.outer = OuterStep {
            learning_rate,
            momentum,
        };
        self
    }

    /// Has each parameter's gradient summed over micro-batches in a tree of `leaves` leaves, a
    /// power of two; 1 by default, which is the serial sum ((g0 + g1) + g2) + ….
    ///
    /// Leaf j has the micro-batches ⌊jM/k⌋ to ⌊(j+1)M/k⌋ - 1 of the step's M, k being the number
    /// of leaves, and sums them serially. The leaves' sums are added in a balanced binary tree,
    /// the earlier one on the left. For M = 6 and k = 4:
    ///
    /// ```text
    /// ((g0 + (g1 + g2)) + (g3 + (g4 + g5)))
    /// ```
    ///
    /// A gradient that is absent from a leaf (the leaf has no micro-batches, or none that uses
    /// the parameter) is left out of the sum: no zero takes its place. Where a parameter is tied
    /// to others, each place has a tree, and the places are added up behind them, as ever.
    ///
    /// *Determinism*: the bits of the sum depend on the mini-batch, M and k, not on cut,
    /// schedule, recompute, offload or CUDA graphs. The tree is there for replicas of the
    /// pipeline (data parallelism): each can sum a subtree of its own, and the subtrees' sums are
    /// added up, so that for one k the bits do not depend on how many replicas there are
    /// either. A serial sum cannot be shared so.
    ///
    /// *Memory*: a step makes log2(k) + 1 sets of a stage's gradients at most that are there at a
    /// time, the one of the leaf that is being summed included; with fewer micro-batches than
    /// leaves, no more than ⌈log2(M)⌉ + 1. A set is left when the step ends.
    #[doc(alias = "data parallel")]
    #[doc(alias = "gradient accumulation")]
    #[must_use]
    pub fn tree(mut self, leaves: usize) -> Self {
        self.tree = leaves;
        self
    }
}
