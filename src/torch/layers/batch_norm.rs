//! Batch norm whose running statistics do not depend on the micro-batches.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use gpipe_partitioner::{MicroId, words};
use tch::{Kind, Tensor, nn};

use crate::{Context, GatheredParts, Layer, StepState, Values};

/// Batch norm that counts a mini-batch once, however it is cut into micro-batches.
///
/// While training, each micro-batch is normalized with its own mean and variance,
/// as [`nn::BatchNorm`] does:
/// y = (x − mean) / √(variance + eps) · weight + bias, the variance biased, both
/// over all dimensions but the features. What differs are the running statistics
/// that inference uses. [`nn::BatchNorm`] moves them once a micro-batch; this layer
/// gathers the micro-batches' statistics and moves them once a step, to
/// (1 − momentum) · running + momentum · statistic, with the mean and the unbiased
/// variance of the whole mini-batch: what one [`nn::BatchNorm`] over it would have.
/// A step that fails or is skipped moves nothing.
///
/// *Shapes*: `[samples, features]`, or `[samples, features, …]` with one, two or
/// three more dimensions, to the same. Parameters and buffers have the names of
/// [`nn::BatchNorm`]: `weight`, `bias`, `running_mean`, `running_var`, each `[features]`.
///
/// *Determinism*: the statistics are combined in the order of the micro-batches, in
/// double precision: the same bits under every partition, schedule and recompute mode.
///
/// *Source*: Ioffe & Szegedy 2015; deferred as in torchgpipe (Kim et al. 2020);
/// variances combined as by Chan, Golub & LeVeque 1979.
///
/// ```
/// use gpipe::{Pipeline, Sequential, tch::{Device, nn}, layers};
///
/// let model = Sequential::new()
///     .layer("conv", |p| nn::conv2d(p, 3, 8, 3, Default::default()))
///     .layer("norm", |p| layers::BatchNorm::new(p, 8, Default::default()));
/// let mut pipe = Pipeline::new(model, &[Device::Cpu, Device::Cpu], 4)?;
/// let names: Vec<_> = pipe.buffers()?.into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["norm.running_mean", "norm.running_var"]);
/// # Ok::<(), gpipe::Error>(())
/// ```
#[doc(alias = "DeferredBatchNorm")]
#[derive(Debug)]
pub struct BatchNorm {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    running: Rc<Running>,
    config: nn::BatchNormConfig,
}

/// The running statistics, and those of the present step's micro-batches.
#[derive(Debug)]
struct Running {
    mean: Tensor,
    variance: Tensor,
    momentum: f64,
    gathered: RefCell<BTreeMap<MicroId, Statistics>>,
    /// The path of the layer's variables.
    name: String,
}

/// Mean and variance of some values of each feature.
#[derive(Debug)]
struct Statistics {
    /// Number of values per feature.
    count: i64,
    /// `[features]`
    mean: Tensor,
    /// Unbiased; `[features]`.
    variance: Tensor,
}

impl BatchNorm {
    /// Batch norm over `features`; running mean 0 and variance 1 to begin with.
    pub fn new(path: &nn::Path<'_>, features: i64, config: nn::BatchNormConfig) -> Self {
        let (weight, bias) = if config.affine {
            (
                Some(path.var("weight", &[features], config.ws_init)),
                Some(path.var("bias", &[features], config.bs_init)),
            )
        } else {
            (None, None)
        };
        let running = (
            path.zeros_no_train("running_mean", &[features]),
            path.ones_no_train("running_var", &[features]),
        );
        let name = path.components().collect::<Vec<_>>().join(".");
        Self::around((weight, bias), running, name, config)
    }

    /// Makes a layer around existing tensors: weight and bias, and running mean and variance;
    /// `name` distinguishes it from others in the model.
    pub fn around(
        (weight, bias): (Option<Tensor>, Option<Tensor>),
        (mean, variance): (Tensor, Tensor),
        name: String,
        config: nn::BatchNormConfig,
    ) -> Self {
        let running = Running {
            mean,
            variance,
            momentum: config.momentum,
            gathered: RefCell::default(),
            name,
        };
        Self {
            weight,
            bias,
            running: Rc::new(running),
            config,
        }
    }

    /// Normalizes with the input's own statistics, and returns them.
    fn normalize(&self, input: &Tensor) -> anyhow::Result<(Tensor, Statistics)> {
        let count = values(input)?;
        // With a momentum of 1 the kernel writes the statistics it has just computed
        // over whatever is there: they cost no second pass over the input.
        let mean = self.running.mean.f_zeros_like()?;
        let variance = self.running.variance.f_zeros_like()?;
        let output = self.kernel(input, (&mean, &variance), true, 1.0)?;
        let statistics = Statistics {
            count,
            mean,
            variance,
        };
        Ok((output, statistics))
    }

    fn check(&self, input: &Tensor) -> anyhow::Result<()> {
        let (shape, features) = (input.size(), self.running.mean.size()[0]);
        anyhow::ensure!(
            (2..=5).contains(&shape.len()) && shape[1] == features,
            "batch norm over {features} features takes [samples, {features}, ...] of two to five \
             dimensions, but got {shape:?}"
        );
        Ok(())
    }

    fn kernel(
        &self,
        input: &Tensor,
        (mean, variance): (&Tensor, &Tensor),
        train: bool,
        momentum: f64,
    ) -> anyhow::Result<Tensor> {
        Ok(input.f_batch_norm(
            self.weight.as_ref(),
            self.bias.as_ref(),
            Some(mean),
            Some(variance),
            train,
            momentum,
            self.config.eps,
            self.config.cudnn_enabled,
        )?)
    }
}

/// Returns the number of values per feature of a checked input.
fn values(input: &Tensor) -> anyhow::Result<i64> {
    let shape = input.size();
    let count = shape[0] * shape[2..].iter().product::<i64>();
    anyhow::ensure!(
        count > 1,
        "batch norm cannot train on an input of shape {shape:?}, whose features have {} each and so \
         no variance: use fewer micro-batches or larger batches",
        words::count(usize::try_from(count).unwrap_or(0), "value")
    );
    Ok(count)
}

impl Statistics {
    fn in_double(&self) -> anyhow::Result<Self> {
        Ok(Self {
            count: self.count,
            mean: self.mean.f_to_kind(Kind::Double)?,
            variance: self.variance.f_to_kind(Kind::Double)?,
        })
    }

    /// The statistics of the values of both together.
    ///
    /// *Source*: Chan, Golub & LeVeque 1979, equations 2.1.
    #[allow(
        clippy::cast_precision_loss,
        reason = "a mini-batch has fewer than 2^52 values of a feature"
    )]
    fn with(&self, other: &Self) -> anyhow::Result<Self> {
        let other = other.in_double()?;
        let count = self.count + other.count;
        let (n, a, b) = (count as f64, self.count as f64, other.count as f64);
        let apart = other.mean.f_sub(&self.mean)?;
        let mean = self.mean.f_add(&apart.f_mul_scalar(b / n)?)?;
        let squares = (self.variance.f_mul_scalar(a - 1.0)?)
            .f_add(&other.variance.f_mul_scalar(b - 1.0)?)?
            .f_add(&apart.f_square()?.f_mul_scalar(a * b / n)?)?;
        Ok(Self {
            count,
            mean,
            variance: squares.f_div_scalar(n - 1.0)?,
        })
    }
}

impl Layer for BatchNorm {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?;
        self.check(&input)?;
        if !ctx.train() {
            let running = (&self.running.mean, &self.running.variance);
            let momentum = self.config.momentum;
            return Ok(self.kernel(&input, running, false, momentum)?.into());
        }
        let (output, statistics) = self.normalize(&input)?;
        if !ctx.recomputing() {
            ctx.gathers(&self.running);
            let mut gathered = self.running.gathered.borrow_mut();
            gathered.insert(ctx.micro(), statistics);
        }
        Ok(output.into())
    }
}

impl StepState for Running {
    fn commit(&self) -> anyhow::Result<()> {
        let gathered = self.gathered.take();
        let mut all: Option<Statistics> = None;
        for statistics in gathered.values() {
            all = Some(match all {
                None => statistics.in_double()?,
                Some(before) => before.with(statistics)?,
            });
        }
        all.map_or(Ok(()), |all| self.blend(&all))
    }

    fn discard(&self) {
        self.gathered.take();
    }

    fn parts(&self) -> anyhow::Result<Option<GatheredParts>> {
        let gathered = self.gathered.borrow();
        let parts = gathered.iter().map(|(micro, own)| {
            let count = Tensor::f_from_slice(&[own.count])?;
            let (mean, variance) = (own.mean.shallow_clone(), own.variance.shallow_clone());
            Ok((*micro, vec![count, mean, variance].into()))
        });
        Ok(Some(GatheredParts {
            name: self.name.clone(),
            parts: parts.collect::<anyhow::Result<_>>()?,
        }))
    }

    fn merge(&self, parts: Vec<(MicroId, Values)>) -> anyhow::Result<()> {
        for (micro, values) in parts {
            let values: Option<Vec<Tensor>> = values.into_iter().collect();
            let Ok([count, mean, variance]) = <[Tensor; 3]>::try_from(values.unwrap_or_default())
            else {
                anyhow::bail!("batch norm has three statistics of a micro-batch");
            };
            let statistics = Statistics {
                count: count.f_int64_value(&[0])?,
                mean,
                variance,
            };
            self.gathered.borrow_mut().insert(micro, statistics);
        }
        Ok(())
    }
}

impl Running {
    /// Moves the running statistics towards these.
    fn blend(&self, new: &Statistics) -> anyhow::Result<()> {
        let _no_grad = tch::no_grad_guard();
        for (running, new) in [(&self.mean, &new.mean), (&self.variance, &new.variance)] {
            let kept = running
                .f_to_kind(Kind::Double)?
                .f_mul_scalar(1.0 - self.momentum)?;
            let moved = kept.f_add(&new.f_mul_scalar(self.momentum)?)?;
            running.shallow_clone().f_copy_(&moved)?;
        }
        Ok(())
    }
}
