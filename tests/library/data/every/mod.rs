//! Every source and every stage: one order for any number of workers, a small state, and no item lost or
//! repeated however often a loader is dropped.
//!
//! [`nothing_is_forgotten`] checks this list against the library's source and the book's tables.

mod sources;
mod stages;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use gpipe::data::{Batches, Dataset, HowMany, Loader, PackedBatch, Padded, Random, Source};
use gpipe::tch::{Kind, Tensor};
use serde_json::Value;

use stages::numbers;

/// A batch that can be shown as text.
trait Shown: Send + 'static {
    fn show(self) -> String;
}

impl Shown for Tensor {
    fn show(self) -> String {
        let numbers: Vec<f64> = self.to_kind(Kind::Double).reshape([-1]).try_into().unwrap();
        format!("{:?} {:?} {numbers:?}", self.kind(), self.size())
    }
}

impl<A: Shown, B: Shown> Shown for (A, B) {
    fn show(self) -> String {
        format!("{} and {}", self.0.show(), self.1.show())
    }
}

impl<A: Shown, B: Shown, C: Shown> Shown for (A, B, C) {
    fn show(self) -> String {
        format!("{}, {} and {}", self.0.show(), self.1.show(), self.2.show())
    }
}

impl<T: Shown> Shown for BTreeMap<String, T> {
    fn show(self) -> String {
        let parts = self
            .into_iter()
            .map(|(name, part)| format!("{name}: {}", part.show()));
        parts.collect::<Vec<_>>().join(", ")
    }
}

impl Shown for Vec<String> {
    fn show(self) -> String {
        format!("{self:?}")
    }
}

impl Shown for Padded {
    fn show(self) -> String {
        (self.rows, self.mask).show()
    }
}

impl Shown for PackedBatch {
    fn show(self) -> String {
        (
            (self.tokens, self.targets),
            (self.documents, self.positions),
        )
            .show()
    }
}

/// A loader of any batches.
trait Running {
    fn batch(&mut self) -> String;
    fn state(&self) -> Value;
}

impl<B: Shown> Running for Loader<B> {
    fn batch(&mut self) -> String {
        self.next().expect("without end").unwrap().show()
    }

    fn state(&self) -> Value {
        Loader::state(self)
    }
}

/// Starts a loader with this many workers at the state of another one.
type Load = Box<dyn Fn(HowMany, Option<&Value>) -> Box<dyn Running>>;

/// An endless chain up to batches, and the parts of the library in it: types of sources, and methods as the
/// book's tables name them.
struct Chain {
    has: &'static str,
    load: Load,
}

fn chain<S: Source, B: Shown>(
    has: &'static str,
    make: impl Fn() -> Batches<S, B> + 'static,
) -> Chain {
    let load = move |workers: HowMany, state: Option<&Value>| -> Box<dyn Running> {
        let batches = make().endless().workers(workers);
        let batches = match state {
            Some(state) => batches.resume(state),
            None => batches,
        };
        Box::new(batches.load().unwrap())
    };
    let load = Box::new(load);
    Chain { has, load }
}

fn all(folder: &Path) -> Vec<Chain> {
    sources::files(folder);
    let mut all = stages::stages();
    all.extend(sources::sources(folder));
    all
}

/// Fixed numbers of workers, and an automatic one.
const WORKERS: [HowMany; 4] = [
    HowMany::Fixed(1),
    HowMany::Fixed(2),
    HowMany::Fixed(4),
    HowMany::Auto,
];

/// Batches compared for the order.
const BATCHES: usize = 20;

/// Times that the loader of each chain is dropped; `DATA_STOPS=N` sets another number.
fn stops() -> usize {
    let asked = std::env::var("DATA_STOPS").ok();
    asked.and_then(|own| own.parse().ok()).unwrap_or(25)
}

#[test]
fn the_order_is_one_for_any_number_of_workers_and_outlives_every_stop() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(11);
    for Chain { has, load } in all(folder.path()) {
        let mut whole = load(WORKERS[0], None);
        let first: Vec<String> = (0..BATCHES).map(|_| whole.batch()).collect();
        for workers in &WORKERS[1..] {
            let mut other = load(*workers, None);
            for (number, batch) in first.iter().enumerate() {
                assert_eq!(
                    other.batch(),
                    *batch,
                    "{has}: batch {number} with {workers:?} workers"
                );
            }
        }
        let mut known = first.into_iter();
        let mut state: Option<Value> = None;
        for stop in 0..stops() {
            let mut loader = load(WORKERS[random.below(4) as usize], state.as_ref());
            for _ in 0..random.below(3) {
                let wanted = known.next().unwrap_or_else(|| whole.batch());
                assert_eq!(
                    loader.batch(),
                    wanted,
                    "{has}: after {stop} stops at {state:?}"
                );
            }
            let text = loader.state().to_string();
            assert!(text.len() < 4096, "{has}: a state of {} bytes", text.len());
            state = Some(serde_json::from_str(&text).unwrap());
        }
    }
}

/// The list covers every type that is a `Source`, and every name with a call in the book's tables of sources
/// and stages.
#[test]
fn nothing_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let chains = all(folder.path());
    let there: BTreeSet<&str> = chains.iter().flat_map(|own| own.has.split(' ')).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wanted = BTreeSet::new();
    types(&root.join("src/data"), &mut wanted);
    // Wrappers that only delegate.
    for own in ["Arc", "Dataset"] {
        assert!(wanted.remove(own), "{own}");
    }
    assert!(wanted.len() > 20, "{wanted:?}");
    let book = fs::read_to_string(root.join("book/src/data.md")).unwrap();
    let tables = book.split("## What makes it fast").next().unwrap();
    let tables = tables.split("Settings of the loader:").next().unwrap();
    for line in tables.lines().filter(|line| line.starts_with("| `")) {
        let cell = line.split(" | ").next().unwrap();
        let calls = cell.split('(').map(|own| {
            let name = |c: char| !(c.is_alphanumeric() || c == '_' || c == ':');
            own.rsplit(name).next().unwrap_or_default().to_owned()
        });
        let calls = calls.filter(|own| !own.is_empty() && !cell.ends_with(own));
        wanted.extend(calls);
    }
    // Sources without a reader in this build.
    for (built, own) in [
        (cfg!(feature = "parquet"), &["Columns", "Columns::open"][..]),
        (
            cfg!(feature = "object-store"),
            &["Objects", "Objects::open"][..],
        ),
    ] {
        own.iter().filter(|_| !built).for_each(|own| {
            assert!(wanted.remove(*own), "{own}");
        });
    }
    // Texts and tokenizers produce the same windows of tokens.
    for text in [
        "Tokens::of_bytes",
        "of_text",
        "TextSet::read",
        "Tokenizer::read",
        "tokens",
    ] {
        wanted.remove(text);
    }
    let missing: Vec<_> = wanted
        .iter()
        .filter(|own| !there.contains(own.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "put {missing:?} into `stages` or `sources` above"
    );
}

/// `X` of each `impl … Source for X`.
fn types(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            types(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (before, rest) in code
            .match_indices(" Source for ")
            .map(|(at, own)| (&code[..at], &code[at + own.len()..]))
        {
            let line = before.rsplit('\n').next().unwrap();
            if line.starts_with("impl") {
                let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap();
                found.insert(rest[..end].to_owned());
            }
        }
    }
}

/// Sources used as one type.
#[test]
fn any_chains_are_mixed_as_one_type() {
    let parts = [
        (numbers(30).boxed(), 1),
        (numbers(30).filter(|n| Ok(*n > 3)).unwrap().boxed(), 2),
    ];
    let mut loader = Dataset::mix(parts, 1).unwrap().batch(3).load().unwrap();
    assert_eq!(loader.next().unwrap().unwrap().size(), [3]);
}
