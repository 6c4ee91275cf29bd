//! Checks of recurrent operators: libtorch's kernels trust the shapes of their weights and states.
//!
//! In Python, `nn.LSTM` and similar modules check them. A file may be inconsistent, and kernels of
//! oneDNN and cuDNN then read and write out of bounds.

use tch::Tensor;

use super::program::{Argument, Node};

/// Requirements of a recurrent operator's tensors, from its constant arguments.
#[derive(Debug)]
pub(super) struct Recurrent {
    /// Rows of a weight per row of the state.
    gates: i64,
    layers: i64,
    directions: i64,
    has_biases: bool,
    /// The samples' dimension of the input; `None` if it is packed.
    samples: Option<usize>,
    /// Number of tensors of each argument, in the operator's order.
    given: Vec<(What, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Input,
    States,
    Parameters,
    Other,
}

impl Recurrent {
    /// Returns the requirements; `None` for other operators.
    ///
    /// # Errors
    /// An argument that must be constant is not.
    pub(super) fn of(node: &Node) -> anyhow::Result<Option<Self>> {
        let gates = match node.operator() {
            "lstm" => 4,
            "gru" => 3,
            "rnn_tanh" | "rnn_relu" => 1,
            _ => return Ok(None),
        };
        let flag = |name: &str| match node.argument(name) {
            Some(Argument::Bool(flag)) => Ok(*flag),
            other => anyhow::bail!("its {name} is {other:?}: only a fixed truth is taken"),
        };
        let layers = match node.argument("num_layers") {
            Some(Argument::Int(layers)) if *layers > 0 => *layers,
            other => anyhow::bail!("its num_layers is {other:?}: only a fixed count is taken"),
        };
        let is_packed = node.argument("batch_sizes").is_some();
        let samples = if is_packed {
            None
        } else {
            Some(usize::from(!flag("batch_first")?))
        };
        let given = node.arguments.iter().map(|(name, own)| {
            let what = match name.as_str() {
                "input" | "data" => What::Input,
                "hx" => What::States,
                "params" => What::Parameters,
                _ => What::Other,
            };
            (what, own.values().len())
        });
        Ok(Some(Self {
            gates,
            layers,
            directions: 1 + i64::from(flag("bidirectional")?),
            has_biases: flag("has_biases")?,
            samples,
            given: given.collect(),
        }))
    }

    /// Checks the tensors for the operator.
    ///
    /// # Errors
    /// A tensor has another shape than the operator assumes.
    pub(super) fn check(&self, tensors: &[&Tensor]) -> anyhow::Result<()> {
        let mut rest = tensors.iter().map(|own| own.size());
        let (mut inputs, mut states, mut parameters) = (Vec::new(), Vec::new(), Vec::new());
        for (what, count) in &self.given {
            let own = rest.by_ref().take(*count);
            match what {
                What::Input => inputs.extend(own),
                What::States => states.extend(own),
                What::Parameters => parameters.extend(own),
                What::Other => own.for_each(drop),
            }
        }
        let [input] = &inputs[..] else {
            anyhow::bail!("it is given no input");
        };
        let dimensions = if self.samples.is_some() { 3 } else { 2 };
        anyhow::ensure!(
            input.len() == dimensions,
            "its input has shape {input:?}, not {dimensions} dimensions"
        );
        let (hidden, out) = self.states(&states, self.samples.map(|at| input[at]))?;
        let wanted = self.wanted(input[dimensions - 1], hidden, out, parameters.len())?;
        for (number, (own, wanted)) in parameters.iter().zip(wanted).enumerate() {
            anyhow::ensure!(
                *own == wanted,
                "its parameter {number} has shape {own:?}, and its states and its input ask for \
                 {wanted:?}"
            );
        }
        Ok(())
    }

    /// Returns the hidden size and the output size, from the states.
    fn states(&self, states: &[Vec<i64>], samples: Option<i64>) -> anyhow::Result<(i64, i64)> {
        // An LSTM has two states: its output, and its cells.
        let count = if self.gates == 4 { 2 } else { 1 };
        anyhow::ensure!(
            states.len() == count,
            "it is given {} states, not {count}",
            states.len()
        );
        let rows = self.layers.saturating_mul(self.directions);
        for own in states {
            let fits = own.len() == 3 && own[0] == rows;
            anyhow::ensure!(
                fits && samples.is_none_or(|samples| own[1] == samples),
                "a state has shape {own:?}, and {rows} layers and directions and its input ask \
                 for [{rows}, {}, hidden size]",
                samples.map_or_else(|| "samples".to_owned(), |own| own.to_string())
            );
        }
        Ok((states[count - 1][2], states[0][2]))
    }

    /// Returns the shapes of the parameters, by layer and direction.
    fn wanted(
        &self,
        input: i64,
        hidden: i64,
        out: i64,
        count: usize,
    ) -> anyhow::Result<Vec<Vec<i64>>> {
        let rows = self.gates.saturating_mul(hidden);
        let mut wanted = Vec::new();
        let mut width = input;
        for _ in 0..self.layers {
            // Limited by the actual number, however many layers the file claims.
            if wanted.len() > count {
                break;
            }
            for _ in 0..self.directions {
                wanted.extend([vec![rows, width], vec![rows, out]]);
                if self.has_biases {
                    wanted.extend([vec![rows], vec![rows]]);
                }
                if hidden != out {
                    wanted.push(vec![out, hidden]);
                }
            }
            width = out.saturating_mul(self.directions);
        }
        anyhow::ensure!(
            wanted.len() == count,
            "it is given {count} parameters, which is not what {} layers have",
            self.layers
        );
        Ok(wanted)
    }
}
