//! Cuts a program into layers, between modules.
//!
//! A *unit* is a module that is not divided: one without submodules, or one of several of the same
//! class, such as a transformer block. Containers, and modules that occur once, are divided. Nodes
//! outside units (a sum in the model's own `forward`), and units without parameters, join the unit
//! before or after them, so that the fewest bytes cross the cut ([`least`]). Cuts at which more tensors
//! are alive than on both sides are dropped, unless they are between neighbours of a list.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::least::{self, Crossing};
use super::modes;
use super::program::{Module, Node, Origin, Program, Role, Size, ValueId, ValueInfo};

/// Assumed value of a dynamic size without an example in the file.
const GUESS: i64 = 16;
/// If there are more nodes between two units, they are not reordered.
const MOST_BETWEEN: usize = 4096;

/// Consecutive nodes that form a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Path of its module.
    pub(super) name: String,
    pub(super) nodes: Range<usize>,
}

/// Returns the layers in order, which cover all nodes. Nodes between units may be reordered.
pub(super) fn cut(program: &mut Program) -> Vec<Stretch> {
    let modules = Modules::of(&program.nodes);
    let (mut all, within) = units(program, &modules);
    let neighbours: HashSet<(String, String)> = (all.windows(2))
        .filter(|pair| modules.are_of_a_list(&pair[0].name, &pair[1].name))
        .map(|pair| (pair[0].name.clone(), pair[1].name.clone()))
        .collect();
    if all.is_empty() {
        return vec![Stretch {
            name: "model".to_owned(),
            nodes: 0..program.nodes.len(),
        }];
    }
    share_the_rest(&mut all, &within, program);
    without_peaks(&mut all, &Alive::of(program), &neighbours);
    name(&mut all);
    all
}

/// Returns the units with parameters, without the nodes between; and for each node, whether it
/// continues the unit of the previous node.
fn units(program: &Program, modules: &Modules<'_>) -> (Vec<Stretch>, Vec<bool>) {
    let mut all: Vec<Stretch> = Vec::new();
    let (mut within, mut before) = (Vec::new(), None);
    for (number, node) in program.nodes.iter().enumerate() {
        let unit = modules.unit(&node.module);
        within.push(unit.is_some() && unit == before);
        before = unit;
        let Some(unit) = unit else {
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
    all.retain(|unit| has_parameters(program, &unit.nodes));
    (all, within)
}

/// Assigns the nodes between units to the unit before or after them.
fn share_the_rest(all: &mut [Stretch], within: &[bool], program: &mut Program) {
    let last = all.len() - 1;
    all[0].nodes.start = 0;
    all[last].nodes.end = program.nodes.len();
    let alive = Alive::of(program);
    let last_uses = last_uses(program);
    for right in 1..=last {
        let between = all[right - 1].nodes.end..all[right].nodes.start;
        let best = if may_change_places(&program.nodes[between.clone()]) {
            rearrange(program, &between, &last_uses)
        } else {
            // The last of the best places. Nodes that change a buffer stay with their module.
            let places = (between.start..=between.end).rev();
            let places = places.filter(|place| !within[*place]);
            let best = places.min_by_key(|place| alive.cost(*place));
            best.unwrap_or(between.end)
        };
        all[right - 1].nodes.end = best;
        all[right].nodes.start = best;
    }
}

/// Whether these nodes may be reordered: there are not too many, and none changes a tensor in place or
/// draws random numbers.
fn may_change_places(nodes: &[Node]) -> bool {
    let bound = |node: &Node| node.operator().ends_with('_') || modes::draws(node);
    nodes.len() <= MOST_BETWEEN && !nodes.iter().any(bound)
}

/// Moves the nodes of `between` that join the preceding unit to the front. *Returns* the first of the
/// others.
fn rearrange(program: &mut Program, between: &Range<usize>, last_uses: &[Option<usize>]) -> usize {
    let mut crossings: BTreeMap<ValueId, Crossing> = BTreeMap::new();
    let nodes = program.nodes[between.clone()].iter().enumerate();
    for (number, node) in nodes {
        let made = node.outputs.iter().map(|value| (*value, true));
        for (value, is_made) in node.inputs().map(|value| (value, false)).chain(made) {
            let info = &program.values[value.0];
            if matches!(info.origin, Origin::Variable(_)) {
                continue;
            }
            let crossing = crossings.entry(value).or_insert_with(|| Crossing {
                maker: None,
                takers: Vec::new(),
                behind: last_uses[value.0].is_some_and(|last| last >= between.end),
                cost: cost_of(info),
            });
            if is_made {
                crossing.maker = Some(number);
            } else {
                crossing.takers.push(number);
            }
        }
    }
    let crossings: Vec<Crossing> = crossings.into_values().collect();
    let mut in_front = least::in_front(between.len(), &crossings).into_iter();
    let (front, behind): (Vec<Node>, Vec<Node>) = program
        .nodes
        .drain(between.clone())
        .partition(|_| in_front.next().unwrap_or(true));
    let first = between.start + front.len();
    let tail = program.nodes.split_off(between.start);
    program
        .nodes
        .extend(front.into_iter().chain(behind).chain(tail));
    for number in between.clone() {
        for value in &program.nodes[number].outputs {
            program.values[value.0].origin = Origin::Node(number);
        }
    }
    first
}

/// Returns, for each value, the last node that uses it; the program's outputs are used after all nodes.
fn last_uses(program: &Program) -> Vec<Option<usize>> {
    let mut last = vec![None; program.values.len()];
    for (number, node) in program.nodes.iter().enumerate() {
        node.inputs().for_each(|value| last[value.0] = Some(number));
    }
    for value in &program.outputs {
        last[value.0] = Some(program.nodes.len());
    }
    last
}

/// Cost of a value that crosses a cut: its bytes at the example's size; of equal bytes, fewer tensors
/// are better. Numbers are free, as they are read from shapes.
fn cost_of(value: &ValueInfo) -> u64 {
    const BYTE: u64 = 1 << 16;
    if value.is_number {
        return 0;
    }
    let size = |size: &Size| match size {
        Size::Fixed(fixed) => *fixed,
        Size::Symbol(_) | Size::Computed(_) => GUESS,
    };
    let sizes: Vec<i64> = match (&value.example, &value.sizes) {
        (Some(example), _) => example.clone(),
        (None, Some(sizes)) => sizes.iter().map(size).collect(),
        (None, None) => Vec::new(),
    };
    let times = |product: u64, size: &i64| product.saturating_mul((*size).max(0).unsigned_abs());
    let elements = sizes.iter().fold(1, times);
    let element = value.kind.map_or(4, |kind| kind.elt_size_in_bytes() as u64);
    elements
        .saturating_mul(element)
        .saturating_mul(BYTE)
        .saturating_add(1)
}

/// Drops cuts with more live tensors than the cuts on both sides, except those between neighbours of a
/// list: an input shared by several blocks, such as a mask, is made after the cut before the first
/// block, so more is alive between blocks.
fn without_peaks(all: &mut Vec<Stretch>, alive: &Alive, neighbours: &HashSet<(String, String)>) {
    loop {
        let count = |stretch: &Stretch| alive.count(stretch.nodes.start);
        let peak = (1..all.len().saturating_sub(1)).find(|at| {
            let own = count(&all[*at]);
            let names = (all[at - 1].name.clone(), all[*at].name.clone());
            let is_peak = own > count(&all[at - 1]) && own > count(&all[at + 1]);
            *at > 1 && is_peak && !neighbours.contains(&names)
        });
        let Some(peak) = peak else {
            return;
        };
        let gone = all.remove(peak);
        all[peak - 1].nodes.end = gone.nodes.end;
    }
}

/// Makes names unique and valid for layers.
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
    let is_parameter = |value: ValueId| match program.values[value.0].origin {
        Origin::Variable(number) => program.variables[number].role == Role::Parameter,
        _ => false,
    };
    let mut nodes = program.nodes[nodes.clone()].iter();
    nodes.any(|node| node.inputs().any(is_parameter))
}

/// The modules of a program's nodes.
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

    /// Whether a module is divided.
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
        // One of several, such as the stages of a network, that is or has a list of blocks.
        let class = |own: &str| self.classes.get(own).copied();
        let is_list = (children.windows(2)).all(|pair| class(pair[0]) == class(pair[1]));
        let listed = children.iter().flat_map(|own| {
            // A list that is not called itself occurs only in its members' paths.
            let below = own.strip_prefix(path).unwrap_or(own);
            let is_member = below.trim_start_matches('.').contains('.');
            if is_list || is_member || self.is_container(own) {
                self.members_of(own)
            } else {
                Vec::new()
            }
        });
        let mut seen = HashSet::new();
        let mut blocks = listed.filter(|own| !self.children(own).is_empty());
        blocks.any(|own| !seen.insert(class(own)))
    }

    /// Whether this is one of PyTorch's lists of modules.
    fn is_container(&self, path: &str) -> bool {
        let class = self.classes.get(path);
        class.is_some_and(|class| class.starts_with("torch.nn.modules.container."))
    }

    /// Whether two units have the same class and are numbered members of the same list.
    fn are_of_a_list(&self, one: &str, other: &str) -> bool {
        let list = |path: &'_ str| {
            let (list, number) = path.rsplit_once('.').unwrap_or(("", path));
            number.parse::<usize>().ok().map(|_| list.to_owned())
        };
        let class = |path| self.classes.get(path);
        list(one).is_some() && list(one) == list(other) && class(one) == class(other)
    }

    /// Returns the members of a list of modules; another module is its own member.
    fn members_of(&self, path: &'a str) -> Vec<&'a str> {
        if !self.is_container(path) {
            return vec![path];
        }
        let children = self.children(path).iter();
        children.flat_map(|own| self.members_of(own)).collect()
    }

    /// Returns the unit of a node.
    fn unit<'m>(&self, module: &'m Module) -> Option<&'m str> {
        let mut paths = module.stack.iter().map(|(path, _)| path.as_str());
        // The model as a whole is always divided.
        let within = paths.next().filter(|path| !path.is_empty());
        within
            .into_iter()
            .chain(paths)
            .find(|path| !self.is_open(path))
    }
}

/// Live tensors before each node: their number and cost.
struct Alive(Vec<(usize, u64)>);

impl Alive {
    fn of(program: &Program) -> Self {
        let end = program.nodes.len();
        let mut at = vec![(0, 0); end + 2];
        for (value, last) in program.values.iter().zip(last_uses(program)) {
            let from = match value.origin {
                Origin::Input(_) => 0,
                Origin::Node(number) => number + 1,
                Origin::Variable(_) => continue,
            };
            let Some(last) = last.filter(|_| !value.is_number) else {
                continue;
            };
            let cost = cost_of(value);
            for place in &mut at[from..=last.min(end)] {
                place.0 += 1;
                place.1 = u64::saturating_add(place.1, cost);
            }
        }
        Self(at)
    }

    /// Number of live tensors.
    fn count(&self, place: usize) -> usize {
        self.0[place].0
    }

    /// Cost of a cut at this place.
    fn cost(&self, place: usize) -> u64 {
        self.0[place].1
    }
}
