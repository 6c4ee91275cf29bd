//! As few bytes cross each cut as can, whatever the nodes between two layers are: against all ways
//! to share them between the two.

use std::collections::{BTreeMap, BTreeSet};

use gpipe::tch::{Device, Kind, Reduction, Tensor};
use gpipe::{ProfileOptions, Sample, Values, models, profile};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::{ALL, Fixture};
use crate::forged::Zip;
use crate::support::{cpus, single_threaded};

const SAMPLES: i64 = 6;
const WIDTH: i64 = 4;
const LAYERS: [&str; 4] = ["0", "3", "6", "8"];

/// A tensor of the program: its columns, and the bytes of each element.
#[derive(Debug, Clone, Copy)]
struct Made {
    columns: i64,
    element: i64,
}

impl Made {
    fn bytes(self) -> u64 {
        (SAMPLES * self.columns * self.element).unsigned_abs()
    }
}

/// A node: what it takes and makes, and the layer that it is in.
#[derive(Debug, Clone)]
struct Node {
    takes: Vec<String>,
    makes: Vec<String>,
    layer: Option<usize>,
}

/// A program of four linear layers with other operators between them.
#[derive(Debug, Default)]
struct Program {
    json: Vec<Value>,
    nodes: Vec<Node>,
    values: BTreeMap<String, Made>,
}

impl Program {
    fn add(&mut self, operator: &str, takes: &[&str], more: Value, made: Made) -> String {
        self.push(operator, takes, more, made, None)
    }

    /// `more` are the arguments behind the tensors, by name.
    fn push(
        &mut self,
        operator: &str,
        takes: &[&str],
        more: Value,
        made: Made,
        layer: Option<usize>,
    ) -> String {
        let name = format!("v{}", self.nodes.len());
        let tensor = |own: &str| json!({"as_tensor": {"name": own}});
        let mut inputs = match (operator, takes) {
            ("cat.default", _) => {
                let all: Vec<_> = takes.iter().map(|own| json!({"name": own})).collect();
                vec![json!({"name": "tensors", "arg": {"as_tensors": all}, "kind": 1})]
            }
            ("linear.default", [own]) => vec![
                json!({"name": "input", "arg": tensor(own), "kind": 1}),
                json!({"name": "weight", "kind": 1,
                       "arg": tensor(&format!("p_{}_weight", LAYERS[layer.unwrap()]))}),
            ],
            (_, [own]) => vec![json!({"name": "self", "arg": tensor(own), "kind": 1})],
            (_, [one, other]) => vec![
                json!({"name": "self", "arg": tensor(one), "kind": 1}),
                json!({"name": "other", "arg": tensor(other), "kind": 1}),
            ],
            other => panic!("{other:?}"),
        };
        for (name, arg) in more.as_object().into_iter().flatten() {
            inputs.push(json!({"name": name, "arg": arg, "kind": 1}));
        }
        let module = match layer {
            Some(layer) => format!(
                ";L__self__{0},{0},torch.nn.modules.linear.Linear",
                LAYERS[layer]
            ),
            None => String::new(),
        };
        self.json.push(json!({
            "target": format!("torch.ops.aten.{operator}"),
            "inputs": inputs,
            "outputs": [tensor(&name)],
            "metadata": {"nn_module_stack": format!("L__self__,,Model{module}")},
            "name": name,
        }));
        self.nodes.push(Node {
            takes: takes.iter().map(|own| (*own).to_owned()).collect(),
            makes: vec![name.clone()],
            layer,
        });
        self.values.insert(name.clone(), made);
        name
    }

    /// One that a linear layer takes.
    fn fit(&mut self, value: &str) -> String {
        let own = self.values[value];
        let float = if own.element == 8 {
            let kind = json!({"dtype": {"as_scalar_type": 7}});
            self.add(
                "_to_copy.default",
                &[value],
                kind,
                Made { element: 4, ..own },
            )
        } else {
            value.to_owned()
        };
        if own.columns == WIDTH {
            return float;
        }
        let keep = json!({"dim": {"as_ints": [1]}, "keepdim": {"as_bool": true}});
        let one = Made {
            columns: 1,
            element: 4,
        };
        let sum = self.add("sum.dim_IntList", &[&float], keep, one);
        let wide = Made {
            columns: WIDTH,
            ..one
        };
        self.add(
            "expand.default",
            &[&sum],
            json!({"size": {"as_ints": [-1, WIDTH]}}),
            wide,
        )
    }

    /// From draws: each an operator, and which values it takes.
    fn draw(draws: &[Vec<(u8, usize, usize)>; 3]) -> Self {
        let mut program = Self::default();
        let wide = Made {
            columns: WIDTH,
            element: 4,
        };
        program.values.insert("input".to_owned(), wide);
        let mut pool = vec!["input".to_owned()];
        let mut next = "input".to_owned();
        for layer in 0..LAYERS.len() {
            let made = program.push("linear.default", &[&next], json!({}), wide, Some(layer));
            pool.push(made);
            for (operator, one, other) in draws.get(layer).into_iter().flatten() {
                let one = pool[pool.len() - 1 - one % pool.len()].clone();
                let other = pool[pool.len() - 1 - other % pool.len()].clone();
                let made = program.values[&one];
                let element = made.element.max(program.values[&other].element);
                let columns = made.columns + program.values[&other].columns;
                pool.push(match operator {
                    0 => program.add("tanh.default", &[&one], json!({}), made),
                    1 if columns <= 16 => {
                        let dim = json!({"dim": {"as_int": 1}});
                        program.add(
                            "cat.default",
                            &[&one, &other],
                            dim,
                            Made { columns, element },
                        )
                    }
                    2 => {
                        let part = json!({"dim": {"as_int": 1}, "start": {"as_int": 0},
                                          "end": {"as_int": 1}});
                        program.add("slice.Tensor", &[&one], part, Made { columns: 1, ..made })
                    }
                    3 => {
                        let kind = json!({"dtype": {"as_scalar_type": 8}});
                        let double = Made { element: 8, ..made };
                        program.add("_to_copy.default", &[&one], kind, double)
                    }
                    _ => {
                        let keep = json!({"dim": {"as_ints": [1]}, "keepdim": {"as_bool": true}});
                        program.add(
                            "sum.dim_IntList",
                            &[&one],
                            keep,
                            Made { columns: 1, ..made },
                        )
                    }
                });
            }
            if layer + 1 < LAYERS.len() {
                // What came last, with a value from anywhere.
                let last = pool[pool.len() - 1].clone();
                let other = pool[(7 * layer + draws[layer].len()) % pool.len()].clone();
                let (last, other) = (program.fit(&last), program.fit(&other));
                next = program.add("mul.Tensor", &[&last, &other], json!({}), wide);
            }
        }
        program
    }

    fn bytes(&self) -> Vec<u8> {
        let mut zip = Zip::open("mlp");
        let square = |meta: &mut Value| {
            meta["sizes"] = json!([{"as_int": WIDTH}, {"as_int": WIDTH}]);
            meta["strides"] = json!([{"as_int": WIDTH}, {"as_int": 1}]);
        };
        let mut entries = Vec::new();
        zip.json("_weights_config.json", |config| {
            for layer in LAYERS {
                let own = &mut config["config"][format!("{layer}.weight")];
                square(&mut own["tensor_meta"]);
                entries.push(own["path_name"].as_str().unwrap().to_owned());
            }
        });
        for entry in entries {
            let ones = vec![1.0_f32; 16].into_iter().flat_map(f32::to_le_bytes);
            *zip.entry(&format!("/{entry}")) = ones.collect();
        }
        let zip = zip.program(|program| {
            let module = &mut program["graph_module"];
            let graph = &mut module["graph"];
            let values = graph["tensor_values"].as_object_mut().unwrap();
            let like = values["input"].clone();
            for (name, made) in &self.values {
                let mut meta = like.clone();
                meta["sizes"][1] = json!({"as_int": made.columns});
                meta["dtype"] = json!(if made.element == 8 { 8 } else { 7 });
                values.insert(name.clone(), meta);
            }
            graph["nodes"] = json!(self.json);
            let last = self.nodes.last().unwrap().makes[0].clone();
            module["signature"]["output_specs"] =
                json!([{"user_output": {"arg": {"as_tensor": {"name": last}}}}]);
        });
        zip.bytes()
    }

    /// The fewest bytes that can cross between this layer and the next one.
    fn least(&self, layer: usize) -> u64 {
        let place = |layer: usize| self.nodes.iter().position(|node| node.layer == Some(layer));
        let (begin, end) = (place(layer).unwrap() + 1, place(layer + 1).unwrap());
        let between = &self.nodes[begin..end];
        let ways = (0..1_u32 << between.len()).filter_map(|way| {
            let front = |number: usize| way >> number & 1 == 1;
            let mut made: BTreeSet<&str> = BTreeSet::from(["input"]);
            made.extend(self.nodes[..begin].iter().flat_map(names_made));
            let mut taken: BTreeSet<&str> = BTreeSet::new();
            taken.extend(self.nodes[end..].iter().flat_map(names_taken));
            let behind: BTreeSet<&str> = (between.iter().enumerate())
                .filter(|(number, _)| !front(*number))
                .flat_map(|(_, node)| names_made(node))
                .collect();
            for (number, node) in between.iter().enumerate() {
                if !front(number) {
                    taken.extend(names_taken(node));
                } else if names_taken(node).any(|own| behind.contains(own)) {
                    return None;
                } else {
                    made.extend(names_made(node));
                }
            }
            Some(
                made.intersection(&taken)
                    .map(|own| self.values[*own].bytes())
                    .sum(),
            )
        });
        ways.min().unwrap()
    }
}

fn names_made(node: &Node) -> impl Iterator<Item = &str> {
    node.makes.iter().map(String::as_str)
}

fn names_taken(node: &Node) -> impl Iterator<Item = &str> {
    node.takes.iter().map(String::as_str)
}

/// Bytes that a profile finds behind each layer, by its name.
fn measured(bytes: Vec<u8>) -> Vec<(String, u64)> {
    let model = models::exported_bytes(bytes).unwrap();
    let x = Tensor::ones([SAMPLES, WIDTH], (Kind::Float, Device::Cpu));
    let options = ProfileOptions::new(&cpus(1)).quick();
    let measured = profile(&model, &Sample::new(x), &options).unwrap();
    let layers = measured.profile.layers().iter();
    layers
        .map(|own| (own.name.clone(), own.footprint.output.0))
        .collect()
}

fn operators() -> impl Strategy<Value = Vec<(u8, usize, usize)>> {
    prop::collection::vec((0_u8..5, 0_usize..4, 0_usize..4), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_other_cut_between_two_layers_has_less_traffic(
        one in operators(), two in operators(), three in operators(),
    ) {
        single_threaded();
        let program = Program::draw(&[one, two, three]);
        let found = measured(program.bytes());
        // A cut with more tensors than both of its neighbours is none.
        prop_assert!(found.len() >= 3, "{found:?}");
        let names: Vec<&str> = found.iter().map(|own| own.0.as_str()).collect();
        for (number, (_, bytes)) in found.iter().enumerate().take(found.len() - 1) {
            let before = LAYERS.iter().position(|own| *own == names[number + 1]).unwrap();
            prop_assert_eq!(*bytes, program.least(before - 1), "before {}", LAYERS[before]);
        }
    }
}
