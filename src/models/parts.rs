//! Building blocks of several models.

use tch::nn::init::{FanInOut, NonLinearity, NormalOrUniform};
use tch::{TchError, Tensor, nn};

use gpipe_torch::layers::BatchNorm;
use gpipe_torch::{Context, Layer, Values};

/// Uniform in ±1/√(inputs of an output): PyTorch's default initialisation.
pub(super) const PYTORCH_INIT: nn::Init = nn::Init::Kaiming {
    dist: NormalOrUniform::Uniform,
    fan: FanInOut::FanIn,
    // √3 · gain / √fan = 1 / √fan
    non_linearity: NonLinearity::ExplicitGain(0.577_350_269_189_625_8),
};

/// N(0, 2/outputs of an input): He et al. 2015, as in torchvision's models.
pub(super) const FAN_OUT_INIT: nn::Init = nn::Init::Kaiming {
    dist: NormalOrUniform::Normal,
    fan: FanInOut::FanOut,
    non_linearity: NonLinearity::ReLU,
};

/// A sequence of layers as one layer.
#[derive(Debug, Default)]
pub(super) struct Chain(Vec<Box<dyn Layer>>);

impl Chain {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Appends a layer.
    pub(super) fn then(mut self, layer: impl Layer + 'static) -> Self {
        self.0.push(Box::new(layer));
        self
    }

    /// Appends a function of one tensor.
    pub(super) fn op(self, function: fn(&Tensor) -> Result<Tensor, TchError>) -> Self {
        self.then(Op(function))
    }
}

impl Layer for Chain {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let mut layers = self.0.iter();
        layers.try_fold(inputs, |values, layer| layer.forward(values, ctx))
    }

    fn parts(&self) -> Vec<&dyn Layer> {
        self.0.iter().map(|layer| &**layer).collect()
    }
}

/// A function of one tensor as a layer.
#[derive(Debug)]
pub(super) struct Op(pub(super) fn(&Tensor) -> Result<Tensor, TchError>);

impl Layer for Op {
    fn forward(&self, inputs: Values, _ctx: &Context) -> anyhow::Result<Values> {
        Ok((self.0)(inputs.one()?)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// A two-dimensional convolution with a kernel of any shape.
#[derive(Debug)]
pub(super) struct Conv {
    weight: Tensor,
    bias: Option<Tensor>,
    stride: [i64; 2],
    padding: [i64; 2],
}

impl Conv {
    /// Makes a convolution with a square kernel, stride 1, without bias, that preserves height and
    /// width.
    pub(super) fn square(path: &nn::Path<'_>, inputs: i64, outputs: i64, size: i64) -> Self {
        Self::new(path, inputs, outputs, [size, size], PYTORCH_INIT)
    }

    pub(super) fn new(
        path: &nn::Path<'_>,
        inputs: i64,
        outputs: i64,
        kernel: [i64; 2],
        init: nn::Init,
    ) -> Self {
        Self {
            weight: path.var("weight", &[outputs, inputs, kernel[0], kernel[1]], init),
            bias: None,
            stride: [1, 1],
            padding: kernel.map(|size| size / 2),
        }
    }

    /// Adds a bias initialised with zeros.
    pub(super) fn bias(mut self, path: &nn::Path<'_>) -> Self {
        self.bias = Some(path.zeros("bias", &[self.weight.size()[0]]));
        self
    }

    pub(super) fn stride(mut self, stride: [i64; 2]) -> Self {
        self.stride = stride;
        self
    }
}

impl Layer for Conv {
    fn forward(&self, inputs: Values, _ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?;
        let bias = self.bias.as_ref();
        let output = input.f_conv2d(&self.weight, bias, self.stride, self.padding, [1, 1], 1)?;
        Ok(output.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// Batch norm initialised with weight 1 and bias 0.
pub(super) fn norm(path: &nn::Path<'_>, features: i64) -> BatchNorm {
    let config = nn::BatchNormConfig {
        ws_init: nn::Init::Const(1.0),
        ..nn::BatchNormConfig::default()
    };
    BatchNorm::new(path, features, config)
}

/// A linear layer with PyTorch's initialisation.
pub(super) fn linear(path: &nn::Path<'_>, inputs: i64, outputs: i64, bias: bool) -> nn::Linear {
    let config = nn::LinearConfig {
        ws_init: PYTORCH_INIT,
        // tch's default: uniform in ±1/√inputs, as in PyTorch.
        bs_init: None,
        bias,
    };
    nn::linear(path, inputs, outputs, config)
}

/// Returns the mean over height and width, `[samples, features]`.
pub(super) fn mean_of_map(input: &Tensor) -> Result<Tensor, TchError> {
    input.f_adaptive_avg_pool2d([1, 1])?.f_flatten(1, -1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names its parts only.
    #[derive(Debug)]
    struct Composite(Chain);

    impl Layer for Composite {
        fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
            self.0.forward(inputs, ctx)
        }

        fn parts(&self) -> Vec<&dyn Layer> {
            vec![&self.0]
        }
    }

    #[test]
    fn a_layer_of_layers_is_graph_safe_if_its_parts_are() {
        let pure = Composite(Chain::new().op(|x| x.f_relu()).then(nn::func(Tensor::relu)));
        assert!(pure.graph_safe());
        let store = nn::VarStore::new(tch::Device::Cpu);
        let one_gathers = Chain::new().op(|x| x.f_relu()).then(norm(&store.root(), 3));
        assert!(!Composite(one_gathers).graph_safe());
    }
}
