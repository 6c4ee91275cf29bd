//! Where a program can be cut: between modules, where few tensors are alive.
//!
//! A *unit* is a module that is not looked into: one without modules of its own, or one of
//! several of a class, such as a block of a transformer. Containers, and modules that are there
//! once, are looked into. Nodes that belong to no unit (a sum in the model's own `forward`) go
//! with the unit before or behind them, whichever leaves fewer tensors alive at the cut.
//! Units without parameters go with the one before them, and so do those after which more is
//! alive than on both sides.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::program::{Module, Node, Origin, Program, Role, Size};

/// What a size is taken for that is not fixed.
const GUESS: i64 = 16;

/// A run of nodes that is a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch {
    /// The path of its module.
    pub(super) name: String,
    pub(super) nodes: Range<usize>,
}

/// The layers, in order; all nodes are in one of them.
pub(super) fn cut(program: &Program) -> Vec<Stretch> {
    let modules = Modules::of(&program.nodes);
    let alive = Alive::of(program);
    let mut all: Vec<Stretch> = Vec::new();
    for (number, node) in program.nodes.iter().enumerate() {
        let Some(unit) = modules.unit(&node.module) else {
            continue;
        };
        match all.last_mut() {
            Some(last) if last.name == unit => last.nodes.end = number + 1,
            _ => all.push(Stretch {
                name: unit.to_owned(),
                nodes: number..number + 1,
            }),
        }
    }
    if all.is_empty() {
        all.push(Stretch {
            name: "model".to_owned(),
            nodes: 0..program.nodes.len(),
        });
    }
    share_the_rest(&mut all, program.nodes.len(), &alive);
    join(&mut all, |_, right| !has_parameters(program, &right.nodes));
    if all.len() > 1 && !has_parameters(program, &all[0].nodes) {
        let first = all.remove(0);
        all[0].nodes.start = first.nodes.start;
    }
    without_peaks(&mut all, &alive);
    name(&mut all);
    all
}

/// Gives the nodes between units to the one before or behind them.
fn share_the_rest(all: &mut [Stretch], count: usize, alive: &Alive) {
    let last = all.len() - 1;
    all[0].nodes.start = 0;
    all[last].nodes.end = count;
    for right in 1..=last {
        let places = all[right - 1].nodes.end..=all[right].nodes.start;
        // The last of the best.
        let best = places.rev().min_by_key(|place| alive.at(*place));
        let best = best.unwrap_or(all[right].nodes.start);
        all[right - 1].nodes.end = best;
        all[right].nodes.start = best;
    }
}

/// Joins neighbours of which `together` holds.
fn join(all: &mut Vec<Stretch>, together: impl Fn(&Stretch, &Stretch) -> bool) {
    all.dedup_by(|right, left| {
        let joined = together(left, right);
        if joined {
            left.nodes.end = right.nodes.end;
        }
        joined
    });
}

/// Drops cuts at which more is alive than at the cuts on both sides.
fn without_peaks(all: &mut Vec<Stretch>, alive: &Alive) {
    loop {
        let count = |stretch: &Stretch| alive.at(stretch.nodes.start).0;
        let peak = (1..all.len().saturating_sub(1)).find(|at| {
            let own = count(&all[*at]);
            *at > 1 && own > count(&all[at - 1]) && own > count(&all[at + 1])
        });
        let Some(peak) = peak else {
            return;
        };
        let gone = all.remove(peak);
        all[peak - 1].nodes.end = gone.nodes.end;
    }
}

/// Makes names unique, and fit for layers.
fn name(all: &mut [Stretch]) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for stretch in all {
        let times = seen.entry(stretch.name.clone()).or_default();
        *times += 1;
        if *times > 1 {
            stretch.name = format!("{}#{times}", stretch.name);
        }
    }
}

fn has_parameters(program: &Program, nodes: &Range<usize>) -> bool {
    let is_parameter = |value: super::program::ValueId| match program.values[value.0].origin {
        Origin::Variable(number) => program.variables[number].role == Role::Parameter,
        _ => false,
    };
    let mut nodes = program.nodes[nodes.clone()].iter();
    nodes.any(|node| node.inputs().any(is_parameter))
}

/// The modules that nodes were made in.
struct Modules<'a> {
    classes: HashMap<&'a str, &'a str>,
    children: HashMap<&'a str, Vec<&'a str>>,
    /// Paths of each class.
    members: HashMap<&'a str, HashSet<&'a str>>,
}

impl<'a> Modules<'a> {
    fn of(nodes: &'a [Node]) -> Self {
        let mut own = Self {
            classes: HashMap::new(),
            children: HashMap::new(),
            members: HashMap::new(),
        };
        for node in nodes {
            let mut parent = None;
            for (path, class) in node.module.stack.iter() {
                own.classes.insert(path, class);
                own.members.entry(class).or_default().insert(path);
                if let Some(parent) = parent {
                    let children = own.children.entry(parent).or_default();
                    if !children.contains(&path.as_str()) {
                        children.push(path);
                    }
                }
                parent = Some(path.as_str());
            }
        }
        own
    }

    fn children(&self, path: &str) -> &[&'a str] {
        self.children.get(path).map_or(&[], Vec::as_slice)
    }

    /// Whether a module is looked into.
    fn is_open(&self, path: &str) -> bool {
        let children = self.children(path);
        if children.is_empty() {
            return false;
        }
        if self.is_container(path) {
            return true;
        }
        let class = self.classes.get(path).copied().unwrap_or_default();
        if self.members.get(class).is_none_or(|all| all.len() == 1) {
            return true;
        }
        // One of several, such as the stages of a network, that has blocks in it.
        let mut seen = HashSet::new();
        let members = children.iter().flat_map(|own| self.members_of(own));
        let blocks = members.filter(|own| !self.children(own).is_empty());
        blocks
            .filter_map(|own| self.classes.get(own))
            .any(|class| !seen.insert(class))
    }

    /// Whether it is one of PyTorch's lists of modules.
    fn is_container(&self, path: &str) -> bool {
        let class = self.classes.get(path);
        class.is_some_and(|class| class.starts_with("torch.nn.modules.container."))
    }

    /// What is in a list of modules; of another module, itself.
    fn members_of(&self, path: &'a str) -> Vec<&'a str> {
        if !self.is_container(path) {
            return vec![path];
        }
        let children = self.children(path).iter();
        children.flat_map(|own| self.members_of(own)).collect()
    }

    /// The unit that a node belongs to.
    fn unit<'m>(&self, module: &'m Module) -> Option<&'m str> {
        let mut paths = module.stack.iter().map(|(path, _)| path.as_str());
        // The model as a whole is always looked into.
        let within = paths.next().filter(|path| !path.is_empty());
        within
            .into_iter()
            .chain(paths)
            .find(|path| !self.is_open(path))
    }
}

/// What is alive before each node.
struct Alive(Vec<(usize, i64)>);

impl Alive {
    fn of(program: &Program) -> Self {
        let end = program.nodes.len();
        let mut last = vec![None; program.values.len()];
        for (number, node) in program.nodes.iter().enumerate() {
            node.inputs().for_each(|value| last[value.0] = Some(number));
        }
        for value in &program.outputs {
            last[value.0] = Some(end);
        }
        let mut at = vec![(0, 0); end + 2];
        for (value, last) in program.values.iter().zip(last) {
            let from = match value.origin {
                Origin::Input(_) => 0,
                Origin::Node(number) => number + 1,
                Origin::Variable(_) => continue,
            };
            let Some(last) = last.filter(|_| !value.is_number) else {
                continue;
            };
            let size = |size: &Size| match size {
                Size::Fixed(fixed) => (*fixed).max(1),
                Size::Symbol(_) | Size::Other => GUESS,
            };
            let sizes = value.sizes.iter().flatten().map(size);
            let elements = sizes.fold(1i64, i64::saturating_mul);
            for place in &mut at[from..=last.min(end)] {
                place.0 += 1;
                place.1 = i64::saturating_add(place.1, elements);
            }
        }
        Self(at)
    }

    /// How many tensors, and their elements.
    fn at(&self, place: usize) -> (usize, i64) {
        self.0[place]
    }
}
