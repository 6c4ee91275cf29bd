//! AmoebaNet-D.

use tch::{Tensor, nn};

use super::parts::{Chain, Conv, Op, PYTORCH_INIT, linear, mean_of_map, norm};
use gpipe_torch::{Context, Layer, Sequential, Values};

/// Sizes of an [`amoebanet_d`] model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmoebaNetD {
    /// L: normal cells, a multiple of 3.
    pub layers: usize,
    /// D: features, from 8; a quarter of them in the first convolution.
    pub filters: i64,
    /// Classes.
    pub classes: i64,
}

/// Operation on an input of a cell's inner node.
#[derive(Debug, Clone, Copy)]
enum Operation {
    None,
    AvgPool3,
    MaxPool2,
    MaxPool3,
    Conv1,
    Conv3,
    Conv7,
}

use Operation::{AvgPool3, Conv1, Conv3, Conv7, MaxPool2, MaxPool3, None as Same};

/// A kind of cell: five nodes, each the sum of two earlier states after an operation, and the states
/// that are concatenated to its output. States 0 and 1 are its inputs.
#[derive(Debug)]
struct Genotype {
    nodes: [[(usize, Operation); 2]; 5],
    output: &'static [usize],
}

/// The published drawing concatenates states 4, 5 and 6; the reference implementation, the GPipe
/// paper's parameter counts and torchgpipe use these.
const NORMAL: Genotype = Genotype {
    nodes: [
        [(1, Conv1), (1, MaxPool3)],
        [(1, Same), (0, Conv7)],
        [(0, Conv1), (0, Conv7)],
        [(2, MaxPool3), (2, Same)],
        [(1, AvgPool3), (5, Conv1)],
    ],
    output: &[0, 3, 4, 6],
};

const REDUCTION: Genotype = Genotype {
    nodes: [
        [(0, MaxPool2), (0, MaxPool3)],
        [(2, Same), (1, Conv3)],
        [(2, Conv7), (2, MaxPool3)],
        [(3, Same), (1, MaxPool2)],
        [(2, AvgPool3), (3, Conv1)],
    ],
    output: &[4, 5, 6],
};

/// Makes a model of `layers` + 6 layers: `stem1`, `stem2`, `stem3`, `cell1_normal1` …,
/// `cell2_reduction`, `cell3_normal1` …, `cell4_reduction`, `cell5_normal1` …, `classify`. Cells pass
/// on two tensors: their output and their input.
///
/// *Shapes*: `[batch, 3, height, width]`, multiples of 32, to logits `[batch, classes]`.
///
/// *Source*: Real et al. 2018; (L, D) as in table 1 of Huang et al. 2019 (GPipe) and
/// the benchmarks of torchgpipe, cell by cell and name by name. Where the genotype
/// says 3 × 3 max pooling, this takes the maximum (torchgpipe takes the mean).
///
/// # Errors
/// `layers` is not a multiple of 3, or `filters` is below 8.
pub fn amoebanet_d(sizes: AmoebaNetD) -> anyhow::Result<Sequential> {
    let AmoebaNetD {
        layers,
        filters,
        classes,
    } = sizes;
    anyhow::ensure!(
        layers.is_multiple_of(3),
        "layers {layers} is not a multiple of 3"
    );
    anyhow::ensure!(filters >= 8, "filters {filters} is below 8");
    let channels = filters / 4;
    let stem = Sequential::new().layer("stem1", move |p| {
        let conv = Conv::square(&(p / "conv"), 3, channels, 3).stride([2, 2]);
        Chain::new()
            .op(|x| x.f_relu())
            .then(conv)
            .then(norm(&(p / "bn"), channels))
    });
    let mut cells = Cells {
        model: stem,
        channels,
        before: channels,
        last: channels,
        reduced: false,
    };
    cells.reduce("stem2");
    cells.reduce("stem3");
    cells.normal("cell1", layers / 3);
    cells.reduce("cell2_reduction");
    cells.normal("cell3", layers / 3);
    cells.reduce("cell4_reduction");
    cells.normal("cell5", layers / 3);
    let last = cells.last;
    Ok(cells
        .model
        .layer("classify", move |p| Classify::new(p, last, classes)))
}

/// A model under construction, to which cells are appended.
struct Cells {
    model: Sequential,
    /// Features per state.
    channels: i64,
    /// Features of the last cell's input and output.
    before: i64,
    last: i64,
    /// Whether the last cell halved height and width.
    reduced: bool,
}

impl Cells {
    fn reduce(&mut self, name: &str) {
        self.channels *= 2;
        self.append(name.to_owned(), &REDUCTION, true);
    }

    fn normal(&mut self, name: &str, count: usize) {
        for number in 1..=count {
            self.append(format!("{name}_normal{number}"), &NORMAL, false);
        }
    }

    fn append(&mut self, name: String, genotype: &'static Genotype, halves: bool) {
        let (before, last, channels) = (self.before, self.last, self.channels);
        let shrink = self.reduced;
        let model = std::mem::take(&mut self.model);
        self.model = model.layer(name, move |p| {
            let path_2 = &(p / "reduce2");
            let second: Option<Box<dyn Layer>> = if shrink {
                Some(Box::new(FactorizedReduce::new(path_2, before, channels)))
            } else if before == channels {
                None
            } else {
                let project = relu_conv_norm(path_2, 0, before, channels, [1, 1], [1, 1]);
                Some(Box::new(project))
            };
            Cell {
                first: relu_conv_norm(&(p / "reduce1"), 0, last, channels, [1, 1], [1, 1]),
                second,
                operations: operations(p, genotype, channels, halves),
                genotype,
            }
        });
        self.before = last;
        self.last = channels * genotype.output.len() as i64;
        self.reduced = halves;
    }
}

/// ReLU, convolution and batch norm, named by numbers from `number` on.
fn relu_conv_norm(
    path: &nn::Path<'_>,
    number: usize,
    inputs: i64,
    outputs: i64,
    kernel: [i64; 2],
    stride: [i64; 2],
) -> Chain {
    let conv = &(path / (number + 1));
    Chain::new()
        .op(|x| x.f_relu())
        .then(Conv::new(conv, inputs, outputs, kernel, PYTORCH_INIT).stride(stride))
        .then(norm(&(path / (number + 2)), outputs))
}

fn operations(
    path: &nn::Path<'_>,
    genotype: &Genotype,
    channels: i64,
    halves: bool,
) -> Vec<[Box<dyn Layer>; 2]> {
    let mut number = 0;
    let mut build = |(state, operation): (usize, Operation)| {
        let path = path / "operations" / number / "module";
        number += 1;
        operation.build(&path, channels, halves && state < 2)
    };
    let nodes = genotype.nodes.iter();
    nodes.map(|&[a, b]| [build(a), build(b)]).collect()
}

impl Operation {
    fn build(self, path: &nn::Path<'_>, channels: i64, halves: bool) -> Box<dyn Layer> {
        let stride = if halves { 2 } else { 1 };
        let (c, quarter) = (channels, channels / 4);
        let conv = |number, inputs, outputs, kernel, stride| {
            relu_conv_norm(path, number, inputs, outputs, kernel, stride)
        };
        match self {
            Same => Box::new(Op(|x| Ok(x.shallow_clone()))),
            AvgPool3 | MaxPool2 | MaxPool3 => Box::new(Pool {
                operation: self,
                stride,
            }),
            Conv1 => Box::new(conv(0, c, c, [1, 1], [stride; 2])),
            Conv3 => Box::new(
                Chain::new()
                    .then(conv(0, c, quarter, [1, 1], [1, 1]))
                    .then(conv(3, quarter, quarter, [3, 3], [stride; 2]))
                    .then(conv(6, quarter, c, [1, 1], [1, 1])),
            ),
            Conv7 => Box::new(
                Chain::new()
                    .then(conv(0, c, quarter, [1, 1], [1, 1]))
                    .then(conv(3, quarter, quarter, [1, 7], [1, stride]))
                    .then(conv(6, quarter, quarter, [7, 1], [stride, 1]))
                    .then(conv(9, quarter, c, [1, 1], [1, 1])),
            ),
        }
    }
}

/// Pooling over 2 × 2 or 3 × 3 windows.
#[derive(Debug)]
struct Pool {
    operation: Operation,
    stride: i64,
}

impl Layer for Pool {
    fn forward(&self, inputs: Values, _ctx: &Context) -> anyhow::Result<Values> {
        let (input, stride) = (inputs.one()?, [self.stride; 2]);
        let pooled = match self.operation {
            MaxPool2 => input.f_max_pool2d([2, 2], stride, [0, 0], [1, 1], false)?,
            MaxPool3 => input.f_max_pool2d([3, 3], stride, [1, 1], [1, 1], false)?,
            _ => input.f_avg_pool2d([3, 3], stride, [1, 1], false, false, None::<i64>)?,
        };
        Ok(pooled.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// Halves height and width: half of the features come from even positions, the other half from odd
/// ones.
#[derive(Debug)]
struct FactorizedReduce {
    even: Conv,
    odd: Conv,
    norm: gpipe_torch::layers::BatchNorm,
}

impl FactorizedReduce {
    fn new(path: &nn::Path<'_>, inputs: i64, outputs: i64) -> Self {
        let conv = |name: &str| Conv::square(&(path / name), inputs, outputs / 2, 1).stride([2, 2]);
        Self {
            even: conv("conv1"),
            odd: conv("conv2"),
            norm: norm(&(path / "bn"), outputs),
        }
    }
}

impl Layer for FactorizedReduce {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?.f_relu()?;
        let (_, _, height, width) = input.size4()?;
        let shifted = input
            .f_narrow(2, 1, height - 1)?
            .f_narrow(3, 1, width - 1)?
            .f_constant_pad_nd([0, 1, 0, 1])?;
        let even = self.even.forward(input.into(), ctx)?.into_one()?;
        let odd = self.odd.forward(shifted.into(), ctx)?.into_one()?;
        self.norm
            .forward(Tensor::f_cat(&[even, odd], 1)?.into(), ctx)
    }

    fn parts(&self) -> Vec<&dyn Layer> {
        vec![&self.even, &self.odd, &self.norm]
    }
}

#[derive(Debug)]
struct Cell {
    first: Chain,
    /// Adapts the input of the previous cell to this cell's shape, if needed.
    second: Option<Box<dyn Layer>>,
    operations: Vec<[Box<dyn Layer>; 2]>,
    genotype: &'static Genotype,
}

impl Layer for Cell {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        // The first cell has a single input, which serves as both.
        let last = inputs
            .get(0)
            .ok_or_else(|| anyhow::anyhow!("a cell takes one or two tensors"))?;
        let before = inputs.get(1).unwrap_or(last);
        let one = |layer: &dyn Layer, tensor: &Tensor| -> anyhow::Result<Tensor> {
            layer.forward(tensor.into(), ctx)?.into_one()
        };
        let second = match &self.second {
            Some(second) => one(&**second, before)?,
            None => before.shallow_clone(),
        };
        let mut states = vec![one(&self.first, last)?, second];
        for (operations, inputs) in self.operations.iter().zip(&self.genotype.nodes) {
            let [a, b] = operations;
            let [(from_a, _), (from_b, _)] = *inputs;
            let sum = one(&**a, &states[from_a])?.f_add(&one(&**b, &states[from_b])?)?;
            states.push(sum);
        }
        let output: Vec<_> = (self.genotype.output.iter())
            .map(|&state| &states[state])
            .collect();
        Ok(vec![Tensor::f_cat(&output, 1)?, last.shallow_clone()].into())
    }

    fn parts(&self) -> Vec<&dyn Layer> {
        let inputs = [Some(&self.first as &dyn Layer), self.second.as_deref()];
        let operations = self.operations.iter().flatten().map(|layer| &**layer);
        inputs.into_iter().flatten().chain(operations).collect()
    }
}

/// Pooling and a linear layer over the last cell's output.
#[derive(Debug)]
struct Classify(nn::Linear);

impl Classify {
    fn new(path: &nn::Path<'_>, features: i64, classes: i64) -> Self {
        Self(linear(&(path / "fc"), features, classes, true))
    }
}

impl Layer for Classify {
    fn forward(&self, inputs: Values, _ctx: &Context) -> anyhow::Result<Values> {
        let output = inputs
            .get(0)
            .ok_or_else(|| anyhow::anyhow!("the classifier takes a cell's output"))?;
        let (weight, bias) = (&self.0.ws, self.0.bs.as_ref());
        Ok(mean_of_map(output)?.f_linear(weight, bias)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}
