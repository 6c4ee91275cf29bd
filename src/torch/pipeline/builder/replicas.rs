//! Settings of replicas and of the gradient sums that they share.

use super::PipelineBuilder;
use crate::OuterStep;

impl PipelineBuilder {
    /// Sets the number of copies of the whole pipeline, each on as many devices (data parallelism);
    /// 1 by default. A power of two, at most the leaves of the [`tree`](Self::tree), and a divisor
    /// of the number of devices.
    ///
    /// [`micro_batches`](Self::micro_batches) stays the mini-batch's number M: replica r of d has
    /// micro-batches ⌊rM/d⌋ to ⌊(r+1)M/d⌋ - 1, which are the leaves from rk/d on of the tree of k
    /// leaves. After a stage's last backward its copies exchange their sums (a reduce-scatter and
    /// an all-gather of whole parameters), and all continue with the total. Every replica has
    /// parameters, gradients and optimizer states, with the same bits.
    ///
    /// *Determinism*: the bits are those of one pipeline with the same mini-batch, M and k,
    /// whatever d is.
    ///
    /// A layer whose forward updates a buffer with every micro-batch, as
    /// [`nn::BatchNorm`](tch::nn::BatchNorm) does, fails the step: no replica sees all
    /// micro-batches. [`layers::BatchNorm`](crate::layers::BatchNorm) works.
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

    /// Sets whether each parameter's gradient and optimizer state are kept in only one of the
    /// [`replicas`](Self::replicas) (ZeRO-1, Rajbhandari et al. 2020, by whole parameters); off by
    /// default. No effect without replicas.
    ///
    /// A replica owns some of each stage's parameters, so that all own about as many bytes: the
    /// largest goes first, to the replica that owns least (frozen ones count, too). An
    /// [`Optimizer`](crate::Optimizer) keeps a parameter's state with the owner, which updates it
    /// and sends the new weights to the other replicas.
    ///
    /// *Memory*: optimizer states take about 1/d of their size on a device, and so do gradients
    /// between steps, but at least as much as the stage's largest parameter. *Traffic* between
    /// replicas is the same: new weights are sent instead of gradient sums, after the update
    /// instead of within the step.
    ///
    /// *Determinism*: no bit changes. Checkpoints have the same tensors, some in separate files,
    /// and are loaded by pipelines with any number of replicas, sharded or not.
    ///
    /// [`Pipeline::parameters`](crate::Pipeline::parameters) returns a parameter's gradient only in
    /// the owner's process.
    #[doc(alias = "ZeRO")]
    #[doc(alias = "ZeroRedundancyOptimizer")]
    #[doc(alias = "distributed optimizer")]
    #[must_use]
    pub fn shard_optimizer(mut self, shard: bool) -> Self {
        self.shard_optimizer = shard;
        self
    }

    /// Makes each of the [`replicas`](Self::replicas) train alone for `steps` steps, a *round*, and
    /// then combines them by an outer step (`DiLoCo`, Douillard et al. 2023, arXiv 2311.08105);
    /// without this they exchange gradients in every step. For replicas with slow links between
    /// them: traffic falls to 1/`steps`.
    ///
    /// Within a round each replica has its own weights and optimizer states, computes the loss and
    /// gradients of its own samples, and clips them by their own norm. The last update of a round
    /// is followed by the outer step: the mean change of the replicas' weights, added up in a
    /// balanced binary tree, is the gradient of an SGD with Nesterov momentum (see
    /// [`outer`](Self::outer)), and all continue from the resulting weights. Floating-point buffers
    /// become the replicas' mean, others those of replica 0. Optimizer states stay separate. A
    /// step's loss and norm are the means over the replicas.
    ///
    /// Steps are counted as updates ([`Optimizer::step`](crate::Optimizer::step)). Within a round
    /// inference uses each replica's own weights, and `load`, `freeze` and `unfreeze` are refused.
    ///
    /// *Determinism*: the same bits in every run, for every cut, schedule and number of processes;
    /// but they depend on the number of replicas and on `steps`.
    ///
    /// *Memory*: in each replica about 2/d of the bytes of its parameters (the weights at the start
    /// of the round, and the momentum, each at the parameter's owner as with
    /// [`shard_optimizer`](Self::shard_optimizer), which excludes local steps).
    #[doc(alias = "DiLoCo")]
    #[doc(alias = "local SGD")]
    #[must_use]
    pub fn local_steps(mut self, steps: usize) -> Self {
        self.local_steps = Some(steps);
        self
    }

    /// Sets the learning rate and Nesterov momentum of the outer step of
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

    /// Sums each parameter's gradient over micro-batches in a tree of `leaves` leaves, a power of
    /// two; 1 by default, which is the serial sum ((g0 + g1) + g2) + ….
    ///
    /// Leaf j has the micro-batches ⌊jM/k⌋ to ⌊(j+1)M/k⌋ - 1 of the step's M, k being the number
    /// of leaves, and sums them serially. The leaves' sums are added in a balanced binary tree,
    /// the earlier one on the left. For M = 6 and k = 4:
    ///
    /// ```text
    /// ((g0 + (g1 + g2)) + (g3 + (g4 + g5)))
    /// ```
    ///
    /// A gradient that is absent from a leaf (the leaf has no micro-batches, or none that uses the
    /// parameter) is left out of the sum: no zero takes its place. For tied parameters each place
    /// has a tree, and the places are added up after them, as without a tree.
    ///
    /// *Determinism*: the bits of the sum depend on the mini-batch, M and k, not on cut, schedule,
    /// recompute, offload or CUDA graphs. The tree serves replicas of the pipeline (data
    /// parallelism): each sums a subtree, and the subtrees' sums are added up, so that for one k
    /// the bits do not depend on the number of replicas either. A serial sum cannot be split so.
    ///
    /// *Memory*: at most log2(k) + 1 sets of a stage's gradients exist at a time during a step,
    /// including that of the leaf being summed; with fewer micro-batches than leaves, at most
    /// ⌈log2(M)⌉ + 1. One set remains after the step.
    #[doc(alias = "data parallel")]
    #[doc(alias = "gradient accumulation")]
    #[must_use]
    pub fn tree(mut self, leaves: usize) -> Self {
        self.tree = leaves;
        self
    }
}
