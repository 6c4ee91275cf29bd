//! Shapes of micro-batches; the frequent ones are captured.

use tch::{Device, Kind, Tensor};

/// Steps with a shape of micro-batches before it is captured.
const WARM_UP: u32 = 3;

/// The number of shapes that are remembered; micro-batches of others run without graphs.
const SHAPES: usize = 4;

/// Key of captured graphs: everything about a list of values except the numbers.
pub(super) type Shape = Vec<Option<Form>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Form {
    kind: Kind,
    device: Device,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    requires_grad: bool,
}

/// Returns the shape; `None` if a value has no strides.
pub(super) fn shape<'a>(values: impl Iterator<Item = Option<&'a Tensor>>) -> Option<Shape> {
    let form = |value: Option<&Tensor>| {
        let Some(tensor) = value else {
            return Some(None);
        };
        if tensor.is_sparse() || tensor.is_mkldnn() {
            return None;
        }
        Some(Some(Form {
            kind: tensor.kind(),
            device: tensor.device(),
            sizes: tensor.size(),
            strides: tensor.stride(),
            requires_grad: tensor.requires_grad(),
        }))
    };
    values.map(form).collect()
}

/// The shapes that micro-batches have had.
#[derive(Debug, Default)]
pub(super) struct Shapes(Vec<Known>);

#[derive(Debug)]
struct Known {
    shape: Shape,
    /// Steps that had it, and whether this one has.
    steps: u32,
    now: bool,
}

impl Shapes {
    /// Notes the shape of a micro-batch. Gives whether it is to go through a graph.
    pub(super) fn is_captured(&mut self, shape: &Shape) -> bool {
        let known = &mut self.0;
        if let Some(known) = known.iter_mut().find(|known| known.shape == *shape) {
            known.now = true;
            return known.steps >= WARM_UP;
        }
        if known.len() == SHAPES {
            // The rarest makes room, unless it has graphs.
            let rarest = (0..SHAPES).min_by_key(|place| known[*place].steps);
            match rarest.filter(|place| known[*place].steps < WARM_UP) {
                Some(place) => drop(known.remove(place)),
                None => return false,
            }
        }
        known.push(Known {
            shape: shape.clone(),
            steps: 0,
            now: true,
        });
        false
    }

    /// Returns whether shapes are captured after this step.
    pub(super) fn in_last_warm_up(&self) -> bool {
        self.0.iter().any(|known| known.steps + 1 == WARM_UP)
    }

    /// A training step ended well.
    pub(super) fn end_step(&mut self) {
        for known in &mut self.0 {
            known.steps += u32::from(std::mem::take(&mut known.now));
        }
    }

    /// A step is undone.
    pub(super) fn abort(&mut self) {
        self.0.iter_mut().for_each(|known| known.now = false);
    }
}
