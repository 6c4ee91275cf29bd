//! Which kind of data a path names: by its ending, then by what it begins with.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::found::Found;
use super::images::{ENDINGS, ending, entries};
use super::{SampleOptions, images, numbers, records, table};
use crate::data::arrays::NamedArrays;
use crate::data::{DataError, Idx, TfRecords};
use crate::files;

/// What can be named, in messages.
pub(super) const KNOWN: &str = "arrays `x` and `y` (.safetensors, .npz, a folder with x.npy and \
                                y.npy), a table (.csv, .tsv, .parquet, .arrow), a folder of images with a folder for \
                                each class, IDX files, TFRecords of tf.train.Examples";

/// What files of columns end with.
const COLUMNS: [&str; 3] = ["parquet", "arrow", "feather"];
/// What is said where there is no reader of them.
#[cfg(not(feature = "parquet"))]
pub(super) const NO_COLUMNS: &str = "this program reads no Parquet and no Arrow: build it with them \
                                     (cargo build --release --features parquet), or save the table as CSV";

/// What the parts of a data set that are not trained on are called.
const TESTS: [&str; 5] = ["test", "val", "valid", "validation", "t10k"];
const TRAIN: &str = "train";

/// What a path may be of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Safetensors,
    Npz,
    Npy,
    Table,
    Columns,
    Idx,
    TfRecord,
    Folder,
}

/// What a path names, where it is samples.
///
/// # Errors
/// There is nothing there, or it cannot be read.
pub(super) fn kind(path: &Path) -> Result<Option<Kind>, DataError> {
    if path.is_dir() {
        return Ok(Some(Kind::Folder));
    }
    let failed = |source| DataError::read(path, source);
    let file = files::open(path).map_err(failed)?;
    if let Some(kind) = by_name(path) {
        return Ok(Some(kind));
    }
    let mut start = Vec::new();
    file.take(6).read_to_end(&mut start).map_err(failed)?;
    Ok(match &start[..] {
        b"ARROW1" | [b'P', b'A', b'R', b'1', ..] => Some(Kind::Columns),
        b"\x93NUMPY" => Some(Kind::Npy),
        [b'P', b'K', 3, 4, ..] => Some(Kind::Npz),
        // The kinds of numbers that IDX has, and some dimensions.
        [0, 0, 8..=14, 1..=8, ..] => Some(Kind::Idx),
        _ => None,
    })
}

fn by_name(path: &Path) -> Option<Kind> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_lowercase();
    Some(match ending(path).as_str() {
        "safetensors" => Kind::Safetensors,
        "npz" => Kind::Npz,
        "npy" => Kind::Npy,
        "csv" | "tsv" => Kind::Table,
        own if COLUMNS.contains(&own) => Kind::Columns,
        _ if name.contains("-ubyte") || name.contains("-idx") || name.contains(".idx") => Kind::Idx,
        _ if name.contains(".tfrecord") => Kind::TfRecord,
        _ => return None,
    })
}

/// Whether a file is one of columns.
pub(super) fn has_columns(path: &Path) -> bool {
    kind(path).is_ok_and(|own| own == Some(Kind::Columns))
}

fn is_columns(name: &str) -> bool {
    COLUMNS.contains(&ending(Path::new(name)).as_str())
}

/// The arrays of a path, and of a file or folder beside it that is not to be trained on; none where
/// it is none of arrays.
pub(super) fn arrays(path: &Path) -> Result<Option<(NamedArrays, Option<NamedArrays>)>, DataError> {
    let open = |kind: Kind, path: &Path| -> Result<Option<NamedArrays>, DataError> {
        Ok(match kind {
            Kind::Safetensors => Some(NamedArrays::safetensors(path)?),
            Kind::Npz => Some(NamedArrays::npz(path)?),
            Kind::Npy => Some(npy_folder(parent(path))?),
            _ => None,
        })
    };
    let alone = |arrays: Option<NamedArrays>| arrays.map(|own| (own, None));
    match kind(path)? {
        Some(Kind::Folder) => {}
        Some(kind) => return Ok(alone(open(kind, path)?)),
        None => return Ok(None),
    }
    let all = entries(path)?;
    let is_npy = |folder: &Path| -> Result<bool, DataError> {
        let mut names = entries(folder)?.into_keys();
        Ok(names.any(|name| ending(Path::new(&name)) == "npy"))
    };
    if let Some(train) = all.get(TRAIN).filter(|own| own.is_dir()) {
        if !is_npy(train)? {
            return Ok(None);
        }
        let test = TESTS.iter().find_map(|own| all.get(*own));
        let test = test.filter(|own| own.is_dir());
        let test = test.map(|test| npy_folder(test)).transpose()?;
        return Ok(Some((npy_folder(train)?, test)));
    }
    if is_npy(path)? {
        return Ok(alone(Some(npy_folder(path)?)));
    }
    let Some(train) = named(&all, TRAIN) else {
        return Ok(None);
    };
    let Some(kind) = by_name(&train) else {
        return Ok(None);
    };
    let test = TESTS.iter().find_map(|own| named(&all, own));
    let test = test.filter(|own| by_name(own) == Some(kind));
    let test = test.map(|test| open(kind, &test)).transpose()?.flatten();
    Ok(open(kind, &train)?.map(|train| (train, test)))
}

/// A file of a folder that is called so, whatever its ending.
fn named(all: &BTreeMap<String, PathBuf>, wanted: &str) -> Option<PathBuf> {
    let mut own = all.values().filter(|own| own.is_file());
    own.find(|own| own.file_stem().is_some_and(|stem| stem == wanted))
        .cloned()
}

fn npy_folder(path: &Path) -> Result<NamedArrays, DataError> {
    let names: Vec<String> = entries(path)?.into_keys().collect();
    Ok(NamedArrays::folder(path, &names))
}

/// The folder of a file: of a path with no folder the parent is empty.
fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|own| !own.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Finds samples, and their test part where there is one.
pub(super) fn found(path: &Path, options: &SampleOptions) -> Result<Found, DataError> {
    let of_table = (options.kept.as_ref()).is_some_and(|own| !own.columns.is_empty());
    if of_table && path.exists() && !is_of_rows(path)? {
        let what = "the model was trained on a table, and this is none: name a table that has its columns \
                    (.csv, .tsv, .parquet, .arrow)";
        return Err(DataError::bad_path(path, what));
    }
    let of_images = (options.kept.as_ref()).is_some_and(|own| !own.names.is_empty() && !of_table);
    if of_images && path.exists() && is_of_rows(path)? {
        let what = "the model was trained on images, and this is a table: name a folder with one of images \
                    for each class";
        return Err(DataError::bad_path(path, what));
    }
    match kind(path)? {
        Some(Kind::Folder) => folder(path, options),
        Some(kind) => file(kind, path, None, options),
        None => Err(DataError::bad_path(
            path,
            format!("this is none of {KNOWN}"),
        )),
    }
}

/// Whether it is a table, or a folder with such.
fn is_of_rows(path: &Path) -> Result<bool, DataError> {
    Ok(match kind(path)? {
        Some(Kind::Table | Kind::Columns) => true,
        Some(Kind::Folder) => entries(path)?
            .into_keys()
            .any(|name| is_columns(&name) || by_name(Path::new(&name)) == Some(Kind::Table)),
        _ => false,
    })
}

/// The samples of a file, and of one that is not to be trained on.
fn file(
    kind: Kind,
    path: &Path,
    test: Option<&Path>,
    options: &SampleOptions,
) -> Result<Found, DataError> {
    let arrays = |open: fn(&Path) -> Result<NamedArrays, DataError>| {
        let mut train = open(path)?;
        let pair = train.pair(options.input_name())?;
        let test = match test {
            Some(test) => Some(open(test)?.pair(options.input_name())?),
            None => train.test(options.input_name())?,
        };
        numbers::found(pair, test, options)
    };
    match kind {
        Kind::Safetensors => arrays(NamedArrays::safetensors),
        Kind::Npz => arrays(NamedArrays::npz),
        Kind::Table | Kind::Columns => {
            let test = test.map(|test| [test.to_owned()]);
            table::found(
                &[path.to_owned()],
                test.as_ref().map(|own| &own[..]),
                options,
            )
        }
        Kind::TfRecord => {
            let test = test.map(|test| TfRecords::open([test])).transpose()?;
            records::found(TfRecords::open([path])?, test, options)
        }
        Kind::Npy => beside(path, options),
        Kind::Idx => idx(path, None, options),
        Kind::Folder => folder(path, options),
    }
}

/// An `.npy` file of inputs is one of a folder's.
fn beside(path: &Path, options: &SampleOptions) -> Result<Found, DataError> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let is = |own: &str| {
        let stem = stem.to_ascii_lowercase();
        stem.strip_suffix("_train").unwrap_or(&stem) == own.to_ascii_lowercase()
    };
    if !is("x") && !options.input_name().is_some_and(is) {
        let what = "this is one array, and two are needed: save the inputs as x.npy and the targets \
                    as y.npy beside it, and name their folder";
        return Err(DataError::bad_path(path, what));
    }
    npy(parent(path), options)
}

fn npy(folder: &Path, options: &SampleOptions) -> Result<Found, DataError> {
    let mut arrays = npy_folder(folder)?;
    let pair = arrays.pair(options.input_name())?;
    let test = arrays.test(options.input_name())?;
    numbers::found(pair, test, options)
}

fn folder(path: &Path, options: &SampleOptions) -> Result<Found, DataError> {
    let all = entries(path)?;
    let names: Vec<String> = all.keys().cloned().collect();
    if all.get(TRAIN).is_some_and(|own| own.is_dir()) {
        let test = TESTS
            .iter()
            .find_map(|own| all.get(*own))
            .filter(|own| own.is_dir());
        return parts(&all[TRAIN], test.map(PathBuf::as_path), options);
    }
    if names.iter().any(|name| ending(Path::new(name)) == "npy") {
        return npy(path, options);
    }
    if let Some(train) = named(&all, TRAIN)
        && let Some(kind) = by_name(&train)
    {
        let test = TESTS.iter().find_map(|own| named(&all, own));
        let test = test.filter(|own| by_name(own) == Some(kind));
        return file(kind, &train, test.as_deref(), options);
    }
    let images = all.values().filter(|own| by_name(own) == Some(Kind::Idx));
    let images: Vec<&PathBuf> = images.filter(|own| is_images(own)).collect();
    if let Some((train, test)) = train_and_test(&images) {
        return idx(train, test, options);
    }
    if names.iter().any(|name| name.contains(".tfrecord")) {
        return shards(all.into_values(), options);
    }
    if names.iter().any(|name| is_columns(name)) {
        return tables(all.into_values(), options);
    }
    if all
        .values()
        .any(|own| own.is_dir() || ENDINGS.contains(&ending(own).as_str()))
    {
        return images::found(path, None, options);
    }
    let what = format!("there is nothing in this folder to train on, which would be {KNOWN}");
    Err(DataError::bad_path(path, what))
}

/// Two folders of the same kind.
fn parts(train: &Path, test: Option<&Path>, options: &SampleOptions) -> Result<Found, DataError> {
    let names: Vec<String> = entries(train)?.into_keys().collect();
    if names.iter().any(|name| ending(Path::new(name)) == "npy") {
        let pair = |folder: &Path| npy_folder(folder)?.pair(options.input_name());
        let test = test.map(pair).transpose()?;
        return numbers::found(pair(train)?, test, options);
    }
    if names.iter().any(|name| name.contains(".tfrecord")) {
        let test = test.map(TfRecords::in_folder).transpose()?;
        return records::found(TfRecords::in_folder(train)?, test, options);
    }
    if names.iter().any(|name| is_columns(name)) {
        let test = test.map(columns_in).transpose()?;
        return table::found(&columns_in(train)?, test.as_deref(), options);
    }
    images::found(train, test, options)
}

/// The files of columns of a folder.
fn columns_in(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let files = entries(folder)?.into_iter();
    let files = files.filter(|(name, _)| is_columns(name));
    Ok(files.map(|(_, path)| path).collect())
}

/// Files of columns of what is trained on, and of what is not, as their names tell.
fn tables(
    files: impl Iterator<Item = PathBuf>,
    options: &SampleOptions,
) -> Result<Found, DataError> {
    let (test, train) = apart(files.filter(|path| by_name(path) == Some(Kind::Columns)));
    match (&train[..], &test[..]) {
        ([], test) => table::found(test, None, options),
        (train, []) => table::found(train, None, options),
        (train, test) => table::found(train, Some(test), options),
    }
}

/// Shards of what is trained on, and of what is not, as their names tell.
fn shards(
    files: impl Iterator<Item = PathBuf>,
    options: &SampleOptions,
) -> Result<Found, DataError> {
    let named = |path: &PathBuf| name(path).contains(".tfrecord");
    let (test, train) = apart(files.filter(named));
    if train.is_empty() {
        return records::found(TfRecords::open(test)?, None, options);
    }
    let test = (!test.is_empty())
        .then(|| TfRecords::open(test))
        .transpose()?;
    records::found(TfRecords::open(train)?, test, options)
}

/// A file's name in small letters.
fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().to_lowercase()
}

/// Those whose names begin as those of a test part do, and all others.
fn apart(files: impl Iterator<Item = PathBuf>) -> (Vec<PathBuf>, Vec<PathBuf>) {
    files.partition(|path| TESTS.iter().any(|own| name(path).starts_with(own)))
}

fn is_images(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().contains("images")
}

/// The file to train on, and one not to, as their names tell.
fn train_and_test<'a>(images: &[&'a PathBuf]) -> Option<(&'a Path, Option<&'a Path>)> {
    let is_test = |path: &Path| TESTS.iter().any(|own| name(path).starts_with(own));
    let train = images.iter().find(|path| !is_test(path))?;
    let test = images.iter().find(|path| is_test(path));
    Some((train, test.map(|own| own.as_path())))
}

/// Images of IDX files, whose labels are beside them.
fn idx(images: &Path, test: Option<&Path>, options: &SampleOptions) -> Result<Found, DataError> {
    let pair = |images: &Path| {
        let name = images.file_name().unwrap_or_default().to_string_lossy();
        let labels = name.replace("images", "labels").replace("idx3", "idx1");
        let labels = images.with_file_name(&labels);
        if !is_images(images) || !labels.is_file() {
            let what = "an IDX file of images (train-images-idx3-ubyte) and one of labels beside it \
                        (train-labels-idx1-ubyte) are needed";
            return Err(DataError::bad_path(images, what));
        }
        let pair = [Idx::open(images)?, Idx::open(&labels)?];
        let [x, y] = [pair[0].shape()[0], pair[1].shape()[0]];
        if x == y {
            return Ok(pair);
        }
        let what = format!("it has {x} images, but {} has {y} labels", labels.display());
        Err(DataError::bad_path(images, what))
    };
    let test = test.map(pair).transpose()?;
    numbers::found(pair(images)?, test, options)
}
