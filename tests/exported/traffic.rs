//! Each cut has the least possible traffic, whatever the nodes between two layers: compared with all ways to
//! divide these between the two sides.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use gpipe::tch::{Device, Kind, Tensor};
use gpipe::{
    Sequential, Values, models,
    profile::{ProfileOptions, Sample, profile},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::{ALL, Fixture};
use crate::forged::Zip;
use crate::support::{cpus, single_threaded};

/// As many samples as in the fixtures.
const SAMPLES: i64 = 6;
const WIDTH: i64 = 4;
const LAYERS: [&str; 4] = ["0", "3", "6", "8"];

/// A tensor of the program: its columns, and the bytes per element.
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

/// A node: its inputs and outputs, and its layer.
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
    fn add(&mut self, operator: &str, takes: &[&str], more: &Value, made: Made) -> String {
        self.push(operator, takes, more, made, None)
    }

    /// `more` are the arguments after the tensors, by name.
    fn push(
        &mut self,
        operator: &str,
        takes: &[&str],
        more: &Value,
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

    /// A value in the form that a linear layer takes.
    fn fit(&mut self, value: &str) -> String {
        let own = self.values[value];
        let float = if own.element == 8 {
            let kind = json!({"dtype": {"as_scalar_type": 7}});
            self.add(
                "_to_copy.default",
                &[value],
                &kind,
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
        let sum = self.add("sum.dim_IntList", &[&float], &keep, one);
        let wide = Made {
            columns: WIDTH,
            ..one
        };
        self.add(
            "expand.default",
            &[&sum],
            &json!({"size": {"as_ints": [-1, WIDTH]}}),
            wide,
        )
    }

    /// Builds a program from draws: each an operator, and its operands.
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
            let made = program.push("linear.default", &[&next], &json!({}), wide, Some(layer));
            pool.push(made);
            for (operator, one, other) in draws.get(layer).into_iter().flatten() {
                let one = pool[pool.len() - 1 - one % pool.len()].clone();
                let other = pool[pool.len() - 1 - other % pool.len()].clone();
                let made = program.values[&one];
                let element = made.element.max(program.values[&other].element);
                let columns = made.columns + program.values[&other].columns;
                pool.push(match operator {
                    0 => program.add("tanh.default", &[&one], &json!({}), made),
                    1 if columns <= 16 => {
                        let dim = json!({"dim": {"as_int": 1}});
                        program.add(
                            "cat.default",
                            &[&one, &other],
                            &dim,
                            Made { columns, element },
                        )
                    }
                    2 => {
                        let part = json!({"dim": {"as_int": 1}, "start": {"as_int": 0},
                                          "end": {"as_int": 1}});
                        program.add("slice.Tensor", &[&one], &part, Made { columns: 1, ..made })
                    }
                    3 => {
                        let kind = json!({"dtype": {"as_scalar_type": 8}});
                        let double = Made { element: 8, ..made };
                        program.add("_to_copy.default", &[&one], &kind, double)
                    }
                    _ => {
                        let keep = json!({"dim": {"as_ints": [1]}, "keepdim": {"as_bool": true}});
                        program.add(
                            "sum.dim_IntList",
                            &[&one],
                            &keep,
                            Made { columns: 1, ..made },
                        )
                    }
                });
            }
            if layer + 1 < LAYERS.len() {
                // The latest value, combined with any other.
                let last = pool[pool.len() - 1].clone();
                let other = pool[(7 * layer + draws[layer].len()) % pool.len()].clone();
                let (last, other) = (program.fit(&last), program.fit(&other));
                next = program.add("mul.Tensor", &[&last, &other], &json!({}), wide);
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
        zip.agreed().bytes()
    }

    /// The parts of the program that matter for cuts.
    fn graph(&self) -> Graph {
        let bytes = |(name, made): (&String, &Made)| (name.clone(), made.bytes());
        Graph {
            nodes: self.nodes.clone(),
            given: vec!["input".to_owned()],
            returned: self.nodes.last().unwrap().makes.clone(),
            bytes: self.values.iter().map(bytes).collect(),
        }
    }
}

/// Nodes in order, and the bytes of their tensors.
struct Graph {
    nodes: Vec<Node>,
    given: Vec<String>,
    returned: Vec<String>,
    bytes: BTreeMap<String, u64>,
}

impl Graph {
    /// The nodes between two layers.
    fn between(&self, front: usize, behind: usize) -> Range<usize> {
        let of = |layer: usize| move |node: &Node| node.layer == Some(layer);
        let end = self.nodes.iter().position(of(behind)).unwrap();
        let begin = self.nodes[..end].iter().rposition(of(front)).unwrap() + 1;
        begin..end
    }

    /// The fewest bytes that can cross between two layers, over all ways to divide these nodes.
    fn least(&self, between: Range<usize>) -> u64 {
        let (front, behind) = (&self.nodes[..between.start], &self.nodes[between.end..]);
        let between = &self.nodes[between];
        let mut made: BTreeMap<&str, Option<usize>> = BTreeMap::new();
        let given = self.given.iter().map(String::as_str);
        made.extend(given.map(|own| (own, None)));
        made.extend(front.iter().flat_map(names_made).map(|own| (own, None)));
        for (number, node) in between.iter().enumerate() {
            made.extend(names_made(node).map(|own| (own, Some(number))));
        }
        let mut taken: BTreeSet<&str> = self.returned.iter().map(String::as_str).collect();
        taken.extend(behind.iter().flat_map(names_taken));
        // For each value: its producer, its users among these nodes, and whether it is used after the cut.
        let values = made.into_iter().map(|(name, maker)| {
            let takers = between.iter().enumerate();
            let takers = takers.filter(|(_, node)| names_taken(node).any(|own| own == name));
            let takers = takers.fold(0_u32, |all, (number, _)| all | 1 << number);
            let bytes = self.bytes.get(name).copied().unwrap_or(0);
            (maker, takers, taken.contains(name), bytes)
        });
        let values: Vec<_> = values.collect();
        let ways = (0..1_u32 << between.len()).filter_map(|way| {
            let mut bytes = 0;
            for (maker, takers, behind, own) in &values {
                if maker.is_none_or(|maker| way >> maker & 1 == 1) {
                    bytes += if *behind || takers & !way != 0 {
                        *own
                    } else {
                        0
                    };
                } else if takers & way != 0 {
                    return None;
                }
            }
            Some(bytes)
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

/// Output bytes of each layer in a profile, by name.
fn measured(model: &Sequential, inputs: impl Into<Values>) -> Vec<(String, u64)> {
    // The number of bytes does not depend on the measuring time.
    let mut options = ProfileOptions::new(&cpus(1)).quick();
    (options.budget, options.confidence) = (Duration::ZERO, 1.0);
    options.sizes = vec![SAMPLES as usize];
    let measured = profile(model, &Sample::new(inputs), &options).unwrap();
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
        let graph = program.graph();
        let model = models::exported_bytes(program.bytes()).unwrap();
        let x = Tensor::ones([SAMPLES, WIDTH], (Kind::Float, Device::Cpu));
        let found = measured(&model, x);
        // A cut with more tensors than both of its neighbours is excluded.
        prop_assert!(found.len() >= 3, "{found:?}");
        for pair in found.windows(2) {
            let behind = LAYERS.iter().position(|own| *own == pair[1].0).unwrap();
            let least = graph.least(graph.between(behind - 1, behind));
            prop_assert_eq!(pair[0].1, least, "before {}", LAYERS[behind]);
        }
    }
}

/// A fixture's graph with the layers of these names.
fn graph_of(fixture: &str, layers: &[String]) -> Graph {
    let mut read = None;
    Zip::open(fixture).json("models/", |program| read = Some(program.clone()));
    let module = &read.unwrap()["graph_module"];
    let texts = |value: &Value| {
        let mut all = Vec::new();
        names_in(value, &mut all);
        all
    };
    let size = |own: &Value| (own["as_int"].as_i64()).or(own["as_expr"]["hint"]["as_int"].as_i64());
    let bytes = |meta: &Value| {
        let sizes = meta["sizes"].as_array().unwrap().iter();
        let elements: i64 = sizes.map(|own| size(own).unwrap()).product();
        let element = match meta["dtype"].as_u64() {
            Some(5 | 8) => 8,
            Some(4 | 7) => 4,
            Some(12) => 1,
            other => panic!("elements of type {other:?}"),
        };
        (elements * element).unsigned_abs()
    };
    let own = |spec: &Value| spec.get("user_input").is_none();
    let specs = module["signature"]["input_specs"].as_array().unwrap();
    let variables: BTreeSet<_> = (specs.iter().filter(|spec| own(spec)))
        .flat_map(|spec| spec.as_object().unwrap().values())
        .filter_map(|spec| spec["arg"]["name"].as_str())
        .collect();
    let tensors = module["graph"]["tensor_values"].as_object().unwrap().iter();
    let tensors = tensors.filter(|(name, _)| !variables.contains(name.as_str()));
    let node = |node: &Value| {
        let stack = node["metadata"]["nn_module_stack"]
            .as_str()
            .unwrap_or_default();
        let paths: Vec<&str> = stack
            .split(';')
            .filter_map(|own| own.split(',').nth(1))
            .collect();
        Node {
            takes: texts(&node["inputs"]),
            makes: texts(&node["outputs"]),
            layer: layers.iter().position(|own| paths.contains(&own.as_str())),
        }
    };
    Graph {
        nodes: module["graph"]["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(node)
            .collect(),
        given: texts(&module["graph"]["inputs"]),
        returned: texts(&module["graph"]["outputs"]),
        bytes: tensors
            .map(|(name, meta)| (name.clone(), bytes(meta)))
            .collect(),
    }
}

/// Collects the tensors' names below a value; those within subgraphs are separate.
fn names_in(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|own| names_in(own, all)),
        Value::Object(map) => {
            if map.contains_key("as_graph") {
                return;
            }
            if let Some(name) = map.get("name").and_then(Value::as_str)
                && map.len() == 1
            {
                all.push(name.to_owned());
            }
            map.values().for_each(|own| names_in(own, all));
        }
        _ => {}
    }
}

/// More nodes between two layers have too many divisions to try.
const MOST: usize = 14;

/// Nodes in subgraphs may be divided as well, so the library may find even less traffic.
#[test]
fn fixtures_have_no_other_cut_with_less_traffic() {
    single_threaded();
    let mut compared = 0;
    for name in ALL {
        let fixture = Fixture::open(name);
        let model = fixture.model();
        let names: Vec<String> = model.names().map(str::to_owned).collect();
        let found = measured(&model, fixture.inputs());
        let graph = graph_of(name, &names);
        for behind in 1..names.len() {
            let between = graph.between(behind - 1, behind);
            if between.len() > MOST {
                continue;
            }
            compared += 1;
            let (bytes, least) = (found[behind - 1].1, graph.least(between));
            assert!(
                bytes <= least,
                "{name}, before {}: {bytes}, not {least}",
                names[behind]
            );
        }
    }
    assert!(compared > 60, "{compared} cuts");
}
