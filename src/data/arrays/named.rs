//! Arrays that belong together: inputs and targets, for training and testing.

use std::path::{Path, PathBuf};

use gpipe_partitioner::words::listed;

use super::Array;
use super::npz::Npz;
use super::safetensors::Safetensors;
use crate::{DataError, Source};

/// Names of inputs and targets, in lowercase.
const PAIR: [&str; 2] = ["x", "y"];
/// Suffixes of training arrays.
const TRAIN: [&str; 2] = ["", "_train"];
/// Suffixes of held-out arrays; if there are several, the first one is used to choose checkpoints.
const TESTS: [&str; 4] = ["_val", "_valid", "_validation", "_test"];

/// Arrays by name.
pub(crate) struct NamedArrays {
    path: PathBuf,
    holder: Holder,
}

enum Holder {
    Safetensors(Safetensors),
    Npz(Npz),
    /// A folder of `.npy` files, by their names without the extension.
    Folder(Vec<String>),
}

impl NamedArrays {
    fn of(path: &Path, holder: Holder) -> Self {
        let path = path.to_owned();
        Self { path, holder }
    }

    pub(crate) fn safetensors(path: &Path) -> Result<Self, DataError> {
        Ok(Self::of(
            path,
            Holder::Safetensors(Safetensors::open(path)?),
        ))
    }

    pub(crate) fn npz(path: &Path) -> Result<Self, DataError> {
        Ok(Self::of(path, Holder::Npz(Npz::open(path)?)))
    }

    /// Opens the arrays of a folder, named after their files.
    pub(crate) fn folder(path: &Path, files: &[String]) -> Self {
        let names = files.iter().filter_map(|name| name.strip_suffix(".npy"));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        Self::of(path, Holder::Folder(names))
    }

    /// Returns the names of all arrays.
    pub(crate) fn names(&self) -> Vec<String> {
        match &self.holder {
            Holder::Safetensors(file) => file.names(),
            Holder::Npz(file) => file.names(),
            Holder::Folder(names) => names.clone(),
        }
    }

    fn array(&mut self, name: &str) -> Result<Array, DataError> {
        match &mut self.holder {
            Holder::Safetensors(file) => file.array(name),
            Holder::Npz(file) => file.array(name),
            Holder::Folder(_) => Array::npy(&self.path.join(format!("{name}.npy"))),
        }
    }

    /// Opens inputs and targets for training; `own` is the model's name of its input, if known.
    ///
    /// # Errors
    /// There are no arrays of those names, or their lengths differ.
    pub(crate) fn pair(&mut self, own: Option<&str>) -> Result<[Array; 2], DataError> {
        let names = self.names();
        match find(&names, &pairs(own, &TRAIN)) {
            Some(pair) => self.both(&pair),
            None => Err(DataError::bad_path(&self.path, no_pair(&names, own))),
        }
    }

    /// Opens inputs without targets: the array of this name, or the only array.
    ///
    /// # Errors
    /// There are several arrays, none of this name.
    pub(crate) fn inputs(&mut self, own: Option<&str>) -> Result<Array, DataError> {
        let names = self.names();
        let called = [pairs(own, &TRAIN), pairs(own, &TESTS)].concat();
        let spelt = |[x, _]: &[String; 2]| names.iter().find(|own| own.eq_ignore_ascii_case(x));
        let mut spelt = called.iter().filter_map(spelt);
        let only = || names.first().filter(|_| names.len() == 1);
        if let Some(name) = spelt.next().or_else(only) {
            return self.array(name);
        }
        let names = listed(names.iter().map(String::as_str));
        let wanted = inputs_called(own);
        let what =
            format!("there is no array {wanted}; there are {names}: save the inputs as {wanted}");
        Err(DataError::bad_path(&self.path, what))
    }

    /// Opens inputs and targets of the test part, if there is one.
    ///
    /// # Errors
    /// As [`NamedArrays::pair`].
    pub(crate) fn test(&mut self, own: Option<&str>) -> Result<Option<[Array; 2]>, DataError> {
        let test = find(&self.names(), &pairs(own, &TESTS));
        test.map(|pair| self.both(&pair)).transpose()
    }

    /// Notes that a test part is left out because there is a validation part.
    pub(crate) fn test_left_out(&self, own: Option<&str>) -> Option<String> {
        let names = self.names();
        let parts = [&TESTS[..3], &TESTS[3..]];
        let [validation, test] = parts.map(|endings| find(&names, &pairs(own, endings)));
        let ([x, _], [test, _]) = (validation?, test?);
        Some(format!(
            "`{x}` is held out, and `{test}` left out, so that no checkpoint is chosen by it: to judge the run by \
             it in the end, save it as `x` and its targets as `y` of another file, for eval --data"
        ))
    }

    /// Opens the arrays of these names, with a common suffix out of these; `None` if some are missing.
    ///
    /// # Errors
    /// The arrays cannot be read, or their lengths differ.
    pub(crate) fn all(
        &mut self,
        names: &[String],
        endings: &[&str],
    ) -> Result<Option<Vec<Array>>, DataError> {
        let there = self.names();
        let spelt = |wanted: &str| there.iter().find(|own| own.eq_ignore_ascii_case(wanted));
        let of = |ending: &&str| -> Option<Vec<String>> {
            let wanted = names.iter().map(|name| format!("{name}{ending}"));
            wanted.map(|name| spelt(&name).cloned()).collect()
        };
        let Some(found) = endings.iter().find_map(of) else {
            return Ok(None);
        };
        let arrays = found.iter().map(|name| self.array(name));
        let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
        self.check_alike(&found, &arrays)?;
        Ok(Some(arrays))
    }

    fn both(&mut self, names: &[String; 2]) -> Result<[Array; 2], DataError> {
        let [x, y] = [self.array(&names[0])?, self.array(&names[1])?];
        let pair = [x, y];
        self.check_alike(names, &pair)?;
        Ok(pair)
    }

    /// Checks that arrays have the same length.
    fn check_alike(&self, names: &[String], arrays: &[Array]) -> Result<(), DataError> {
        let first = arrays.first().map_or(0, Source::len);
        let Some(other) = arrays.iter().position(|own| own.len() != first) else {
            return Ok(());
        };
        let what = format!(
            "`{}` has {first} items, but `{}` has {}: their first dimensions must be alike",
            names[0],
            names[other],
            arrays[other].len()
        );
        Err(DataError::bad_path(&self.path, what))
    }
}

/// Explains that these arrays have no inputs and targets.
fn no_pair(names: &[String], own: Option<&str>) -> String {
    let wanted = inputs_called(own);
    if let Some(weight) = names.iter().find(|name| name.ends_with(".weight")) {
        return format!(
            "it has the weights of a model (`{weight}` and others), and no arrays {wanted} and `y`: give it \
             as --weights, and name data here"
        );
    }
    format!(
        "there are no arrays {wanted} and `y`; there are {}: save the inputs as {wanted} and the targets as \
         `y`",
        listed(names.iter().map(String::as_str))
    )
}

/// Formats the valid names of inputs for messages.
fn inputs_called(own: Option<&str>) -> String {
    let [x, _] = PAIR;
    match own.filter(|own| !own.eq_ignore_ascii_case(x)) {
        Some(own) => format!("`{own}` or `{x}`"),
        None => format!("`{x}`"),
    }
}

/// Returns possible names of inputs and targets with these suffixes; the model's own name comes first.
fn pairs(own: Option<&str>, endings: &[&str]) -> Vec<[String; 2]> {
    let [x, y] = PAIR;
    let inputs = own.into_iter().chain([x]);
    let pair = |x: &str, ending: &str| [x, y].map(|name| format!("{name}{ending}"));
    inputs
        .flat_map(|x| endings.iter().map(move |ending| pair(x, ending)))
        .collect()
}

/// Returns the first of these pairs that exists, in its actual spelling.
fn find(names: &[String], pairs: &[[String; 2]]) -> Option<[String; 2]> {
    let spelt = |wanted: &str| {
        let mut own = names
            .iter()
            .filter(|name| name.eq_ignore_ascii_case(wanted));
        own.next().cloned()
    };
    let mut pairs = pairs.iter();
    pairs.find_map(|[x, y]| Some([spelt(x)?, spelt(y)?]))
}
