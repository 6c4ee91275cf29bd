//! Splits the files of a folder by their names into training and held-out files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::damage;

/// A part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Split {
    Train,
    Validation,
    Test,
}

/// Names of the parts of data sets, of TensorFlow Datasets, Hugging Face and MNIST.
const WORDS: [(&str, Split); 11] = [
    ("train", Split::Train),
    ("training", Split::Train),
    ("val", Split::Validation),
    ("valid", Split::Validation),
    ("validation", Split::Validation),
    ("dev", Split::Validation),
    ("test", Split::Test),
    ("testing", Split::Test),
    ("eval", Split::Test),
    ("evaluation", Split::Test),
    ("t10k", Split::Test),
];
/// Extensions of files.
const ENDINGS: [&str; 10] = [
    "arrow",
    "bin",
    "csv",
    "feather",
    "npz",
    "parquet",
    "safetensors",
    "tfrecord",
    "tfrecords",
    "tsv",
];

/// Returns the part that a word names; only the letters of `val2017` count.
pub(super) fn word(word: &str) -> Option<Split> {
    let word = word.to_lowercase();
    let is = |own: &str| {
        let named = WORDS.iter().find(|(name, _)| *name == own);
        named.map(|(_, split)| *split)
    };
    is(&word).or_else(|| is(word.trim_end_matches(|own: char| own.is_ascii_digit())))
}

/// Returns a file's part, by the first word of its name (`train-00000-of-00002.parquet`) or by the last
/// before extensions and numbers (`pets-train.tfrecord-00000-of-00002`).
pub(super) fn of(path: &Path) -> Option<Split> {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    let words = name.split(|own: char| !own.is_alphanumeric());
    let words: Vec<&str> = words.filter(|own| !own.is_empty()).collect();
    let is_end = |place: &usize| ENDINGS.contains(&words[*place]) || is_shard(&words[*place..]);
    let end = (0..words.len()).find(is_end).unwrap_or(words.len());
    let is_name = |own: &&&str| !own.bytes().all(|own| own.is_ascii_digit());
    let last = words[..end].iter().rev().find(is_name);
    let first = words[..end].first();
    let own = |found: Option<&&str>| found.and_then(|own| word(own));
    own(first).or_else(|| own(last))
}

/// Whether these words begin with a shard's number: `00000-of-00002`.
fn is_shard(words: &[&str]) -> bool {
    let is_number = |own: &str| own.bytes().all(|own| own.is_ascii_digit());
    matches!(words, [one, "of", all, ..] if is_number(one) && is_number(all))
}

/// Whether this is the name of a TFRecord file: TensorFlow's scripts write ImageNet shards without an
/// extension.
pub(super) fn is_records(name: &str) -> bool {
    let words: Vec<&str> = name.split('-').collect();
    let last = words.len().saturating_sub(3);
    name.contains(".tfrecord") || (!name.contains('.') && is_shard(&words[last..]))
}

/// Whether this is a cache file of Hugging Face `datasets`: `cache-6ee8a1a5e5f8d3a1.arrow`.
pub(super) fn is_cache(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let hash = name.strip_prefix("cache-").and_then(|own| own.get(..16));
    name.ends_with(".arrow")
        && hash.is_some_and(|own| own.bytes().all(|own| own.is_ascii_hexdigit()))
}

/// The files of a data set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) train: Vec<PathBuf>,
    /// The validation part, or else the test part.
    pub(crate) held_out: Vec<PathBuf>,
    /// Notes about other files.
    pub(super) notes: Vec<String>,
}

impl Parts {
    /// Opens the held-out files, if any.
    pub(super) fn test<T, E>(
        &self,
        open: impl FnOnce(&[PathBuf]) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        (!self.held_out.is_empty())
            .then(|| open(&self.held_out))
            .transpose()
    }
}

/// Splits files into parts. If some are named as training files, unnamed ones are not used; if there is
/// a validation part, the test part is left out, as checkpoints are chosen by held-out data.
pub(crate) fn parts(files: impl IntoIterator<Item = PathBuf>) -> Parts {
    let mut all: BTreeMap<Option<Split>, Vec<PathBuf>> = BTreeMap::new();
    let (computed, files): (Vec<_>, Vec<_>) = files.into_iter().partition(|own| is_cache(own));
    for path in files {
        all.entry(of(&path)).or_default().push(path);
    }
    let mut take = |split| all.remove(&split).unwrap_or_default();
    let (others, train) = (take(None), take(Some(Split::Train)));
    let (validation, test) = (take(Some(Split::Validation)), take(Some(Split::Test)));
    let (train, unknown) = match (train.is_empty(), others.is_empty()) {
        (false, _) => (train, others),
        (true, false) => (others, Vec::new()),
        // If only one part's files are given, they are the data.
        (true, true) => {
            let train = [validation, test].concat();
            return Parts {
                notes: left_out(&computed).into_iter().collect(),
                train,
                ..Parts::default()
            };
        }
    };
    let (held_out, test) = if validation.is_empty() {
        (test, Vec::new())
    } else {
        (validation, test)
    };
    let unknown = left_out(&[unknown, computed].concat());
    Parts {
        notes: unknown.into_iter().chain(test_left_out(&test)).collect(),
        train,
        held_out,
    }
}

/// Returns the training folder, the held-out folder, and a note about a third one.
#[allow(clippy::type_complexity, reason = "two places need it")]
pub(super) fn folders(
    all: &BTreeMap<String, PathBuf>,
) -> Option<(&Path, Option<&Path>, Option<String>)> {
    let find = |split| {
        let mut own = all
            .iter()
            .filter(|(name, path)| word(name) == Some(split) && path.is_dir());
        own.next().map(|(_, path)| path.as_path())
    };
    let train = find(Split::Train)?;
    match (find(Split::Validation), find(Split::Test)) {
        (Some(held_out), Some(test)) => {
            let note = test_left_out(&[test.to_owned()]);
            Some((train, Some(held_out), note))
        }
        (validation, test) => Some((train, validation.or(test), None)),
    }
}

fn named(files: &[PathBuf]) -> String {
    let names = files
        .iter()
        .map(|own| own.file_name().unwrap_or_default().to_string_lossy());
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    damage::named(&names)
}

fn left_out(files: &[PathBuf]) -> Option<String> {
    (!files.is_empty()).then(|| format!("neither trained on nor held out: {}", named(files)))
}

/// Notes that a test part is left out because there is a validation part.
pub(crate) fn test_left_out(files: &[PathBuf]) -> Option<String> {
    let first = files.first()?;
    Some(format!(
        "the validation part is held out, and the test part left out ({}), so that no checkpoint is chosen by \
         it: judge the run by it in the end, with eval --data {}",
        named(files),
        first.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_wild_tell_their_part() {
        use Split::{Test, Train, Validation};
        for (name, wanted) in [
            ("pets-train.tfrecord-00000-of-00002", Some(Train)),
            ("pets-test.tfrecord-00000-of-00001", Some(Test)),
            (
                "oxford_iiit_pet-validation.tfrecord-00000-of-00001",
                Some(Validation),
            ),
            ("train-00000-of-01024", Some(Train)),
            ("validation-00000-of-00128", Some(Validation)),
            ("test-00000-of-00001-a09b74b3ef9c3b56.parquet", Some(Test)),
            ("imdb-train.arrow", Some(Train)),
            ("imdb-train-00001-of-00002.arrow", Some(Train)),
            ("imdb-unsupervised.arrow", None),
            ("cards_valid_03.parquet", Some(Validation)),
            ("val2017.tfrecord", Some(Validation)),
            ("v1.2-dev.parquet", Some(Validation)),
            ("t10k-images-idx3-ubyte", Some(Test)),
            ("data-00000-of-00001.arrow", None),
            ("testimony.parquet", None),
            ("valley.arrow", None),
            ("0000.parquet", None),
        ] {
            assert_eq!(of(Path::new(name)), wanted, "{name}");
        }
    }

    fn names(files: &[PathBuf]) -> Vec<&str> {
        files.iter().filter_map(|own| own.to_str()).collect()
    }

    #[test]
    fn the_test_part_is_not_what_checkpoints_are_chosen_by() {
        let files = ["a-train.arrow", "a-validation.arrow", "a-test.arrow"];
        let own = parts(files.map(PathBuf::from));
        assert_eq!(names(&own.train), ["a-train.arrow"]);
        assert_eq!(names(&own.held_out), ["a-validation.arrow"]);
        assert!(
            own.notes[0].contains("eval --data a-test.arrow"),
            "{:?}",
            own.notes
        );
        let own = parts(["a-train.arrow", "a-test.arrow"].map(PathBuf::from));
        assert_eq!(
            (names(&own.held_out), own.notes),
            (vec!["a-test.arrow"], vec![])
        );
    }

    #[test]
    fn what_is_named_for_something_else_is_not_trained_on() {
        let cache = "cache-0123456789abcdef_00000_of_00004.arrow";
        let own = parts(["imdb-train.arrow", "imdb-unsupervised.arrow", cache].map(PathBuf::from));
        assert_eq!(names(&own.train), ["imdb-train.arrow"]);
        assert!(own.notes[0].contains("imdb-unsupervised") && own.notes[0].contains(cache));
        let own = parts(["data-00000-of-00001.arrow", cache].map(PathBuf::from));
        assert_eq!(names(&own.train), ["data-00000-of-00001.arrow"]);
        let own = parts(["cache-hits.arrow", "b.arrow"].map(PathBuf::from));
        assert_eq!(names(&own.train), ["cache-hits.arrow", "b.arrow"]);
        // Files of a single part are the data.
        let own = parts(["test-0.arrow", "test-1.arrow"].map(PathBuf::from));
        assert_eq!(names(&own.train), ["test-0.arrow", "test-1.arrow"]);
    }
}
