//! Detects the kind of data at a path, by its extension or its first bytes.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::found::Found;
use super::images::{ENDINGS, ending, entries};
use super::splits::{self, Parts, Split, is_records};
use super::{SampleOptions, images, numbers, records, table};
use crate::arrays::NamedArrays;
use crate::magic::Magic;
use crate::{DataError, Idx, TfRecords};
use gpipe_partitioner::files;

/// List of supported data, for messages.
pub(super) const KNOWN: &str = "arrays `x` and `y` (.safetensors, .npz, a folder with x.npy and \
                                y.npy), a table (.csv, .tsv, .parquet, .arrow), a folder of images with a folder for \
                                each class, IDX files, TFRecords of tf.train.Examples";

/// Extensions of columnar files.
const COLUMNS: [&str; 3] = ["parquet", "arrow", "feather"];
/// Message if their reader is not built in.
#[cfg(not(feature = "parquet"))]
pub(super) const NO_COLUMNS: &str = "this program reads no Parquet and no Arrow: build it with them \
                                     (cargo build --release --features parquet), or save the table as CSV";

/// A kind of data.
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

/// Detects the kind of data at a path; `None` if it holds no samples.
///
/// # Errors
/// There is nothing at the path, or it cannot be read.
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
    file.take(12).read_to_end(&mut start).map_err(failed)?;
    Ok(match Magic::of(&start) {
        Some(Magic::Columns) => Some(Kind::Columns),
        Some(Magic::Npy) => Some(Kind::Npy),
        Some(Magic::Zip) => Some(Kind::Npz),
        Some(Magic::Safetensors) => Some(Kind::Safetensors),
        Some(Magic::Idx) => Some(Kind::Idx),
        Some(Magic::TfRecord) => Some(Kind::TfRecord),
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
        _ if is_records(&name) => Kind::TfRecord,
        _ => return None,
    })
}

/// Whether a file is columnar.
pub(super) fn has_columns(path: &Path) -> bool {
    kind(path).is_ok_and(|own| own == Some(Kind::Columns))
}

fn is_columns(name: &str) -> bool {
    COLUMNS.contains(&ending(Path::new(name)).as_str())
}

/// Opens the arrays at a path, and those of a test part in the same folder; `None` if there are no
/// arrays.
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
    if let Some((train, test, _)) = splits::folders(&all) {
        if !is_npy(train)? {
            return Ok(None);
        }
        let test = test.map(npy_folder).transpose()?;
        return Ok(Some((npy_folder(train)?, test)));
    }
    if is_npy(path)? {
        return Ok(alone(Some(npy_folder(path)?)));
    }
    let Some((kind, train, test, _)) = one_each(&all) else {
        return Ok(None);
    };
    let test = test.map(|test| open(kind, &test)).transpose()?.flatten();
    Ok(open(kind, &train)?.map(|train| (train, test)))
}

/// Returns the training file of a folder, the test file, and a note about others, if each part is a
/// single file.
fn one_each(
    all: &BTreeMap<String, PathBuf>,
) -> Option<(Kind, PathBuf, Option<PathBuf>, Vec<String>)> {
    let is_part = |path: &Path| {
        let stem = path.file_stem().unwrap_or_default();
        splits::word(&stem.to_string_lossy()).is_some()
    };
    let only = |files: &[PathBuf]| match files {
        [one] => Some(one.clone()),
        several => several.iter().find(|own| is_part(own)).cloned(),
    };
    let kinds = [Kind::Safetensors, Kind::Npz, Kind::Table];
    kinds.into_iter().find_map(|kind| {
        let files = all
            .values()
            .filter(|own| own.is_file() && by_name(own) == Some(kind));
        let Parts {
            train,
            held_out,
            notes,
        } = splits::parts(files.cloned());
        let train = only(&train).filter(|own| splits::of(own) == Some(Split::Train))?;
        Some((kind, train, only(&held_out), notes))
    })
}

fn npy_folder(path: &Path) -> Result<NamedArrays, DataError> {
    let names: Vec<String> = entries(path)?.into_keys().collect();
    Ok(NamedArrays::folder(path, &names))
}

/// Returns a file's folder; a bare file name has an empty parent.
fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|own| !own.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Finds the samples, and their test part if there is one.
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

/// Whether this is a table, or a folder of tables.
fn is_of_rows(path: &Path) -> Result<bool, DataError> {
    Ok(match kind(path)? {
        Some(Kind::Table | Kind::Columns) => true,
        Some(Kind::Folder) => {
            let all = entries(path)?;
            let inside = match (splits::folders(&all), within(&all)?) {
                (Some((folder, ..)), _) | (None, Some(folder)) => Some(entries(folder)?),
                _ => None,
            };
            let mut names = all.keys().chain(inside.iter().flat_map(BTreeMap::keys));
            names.any(|name| is_columns(name) || by_name(Path::new(name)) == Some(Kind::Table))
        }
        _ => false,
    })
}

/// Reads the samples of a file, and of a test file.
fn file(
    kind: Kind,
    path: &Path,
    test: Option<&Path>,
    options: &SampleOptions,
) -> Result<Found, DataError> {
    let arrays = |open: fn(&Path) -> Result<NamedArrays, DataError>| {
        let mut train = open(path)?;
        let own = options.input_name();
        match test {
            Some(test) => numbers::found(train.pair(own)?, Some(open(test)?.pair(own)?), options),
            None => of_arrays(&mut train, options),
        }
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

/// Reads an `.npy` file of inputs as part of its folder.
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
    of_arrays(&mut npy_folder(folder)?, options)
}

/// Reads training arrays, and a test part among them.
fn of_arrays(arrays: &mut NamedArrays, options: &SampleOptions) -> Result<Found, DataError> {
    let own = options.input_name();
    let (pair, test) = (arrays.pair(own)?, arrays.test(own)?);
    Ok(numbers::found(pair, test, options)?.with_notes(arrays.test_left_out(own)))
}

fn folder(path: &Path, options: &SampleOptions) -> Result<Found, DataError> {
    let all = entries(path)?;
    let names: Vec<String> = all.keys().cloned().collect();
    if let Some((train, test, note)) = splits::folders(&all) {
        return Ok(parts(train, test, options)?.with_notes(note));
    }
    if names.iter().any(|name| ending(Path::new(name)) == "npy") {
        return npy(path, options);
    }
    if let Some((kind, train, test, notes)) = one_each(&all) {
        return Ok(file(kind, &train, test.as_deref(), options)?.with_notes(notes));
    }
    let files = |is: &dyn Fn(&Path) -> bool| {
        let files = all.values().filter(|own| is(own)).cloned();
        splits::parts(files)
    };
    let images = files(&|own| by_name(own) == Some(Kind::Idx) && is_images(own));
    if let Some(train) = images.train.first() {
        let test = images.held_out.first().map(PathBuf::as_path);
        return Ok(idx(train, test, options)?.with_notes(images.notes));
    }
    if names.iter().any(|name| is_records(name)) {
        let own = files(&|own| is_records(&name(own)));
        let test = own.test(|test| TfRecords::open(test))?;
        let found = records::found(TfRecords::open(own.train)?, test, options)?;
        return Ok(found.with_notes(own.notes));
    }
    if names.iter().any(|name| is_columns(name)) {
        let own = files(&|own| by_name(own) == Some(Kind::Columns));
        let test = (!own.held_out.is_empty()).then_some(&own.held_out[..]);
        return Ok(table::found(&own.train, test, options)?.with_notes(own.notes));
    }
    if let Some(inside) = within(&all)? {
        return folder(inside, options);
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

/// Returns the only subfolder, if it has files of records or columns: `data/` of Hugging Face data
/// sets, or the version of TensorFlow Datasets.
fn within(all: &BTreeMap<String, PathBuf>) -> Result<Option<&Path>, DataError> {
    let mut folders = all.values().filter(|own| own.is_dir());
    let (Some(inside), None) = (folders.next(), folders.next()) else {
        return Ok(None);
    };
    let mut names = entries(inside)?.into_keys();
    let is_inside = names.any(|name| is_records(&name) || is_columns(&name));
    Ok(is_inside.then_some(inside))
}

/// Reads two folders of the same kind.
fn parts(train: &Path, test: Option<&Path>, options: &SampleOptions) -> Result<Found, DataError> {
    let names: Vec<String> = entries(train)?.into_keys().collect();
    if names.iter().any(|name| ending(Path::new(name)) == "npy") {
        let pair = |folder: &Path| npy_folder(folder)?.pair(options.input_name());
        let test = test.map(pair).transpose()?;
        return numbers::found(pair(train)?, test, options);
    }
    if names.iter().any(|name| is_records(name)) {
        let open = |folder: &Path| TfRecords::open(files_in(folder, is_records)?);
        let test = test.map(open).transpose()?;
        return records::found(open(train)?, test, options);
    }
    if names.iter().any(|name| is_columns(name)) {
        let test = test.map(|test| files_in(test, is_columns)).transpose()?;
        return table::found(&files_in(train, is_columns)?, test.as_deref(), options);
    }
    images::found(train, test, options)
}

/// Returns the files of a folder whose names match.
fn files_in(folder: &Path, is: fn(&str) -> bool) -> Result<Vec<PathBuf>, DataError> {
    let files = entries(folder)?.into_iter();
    let files = files.filter(|(name, path)| is(name) && !splits::is_cache(path));
    Ok(files.map(|(_, path)| path).collect())
}

/// Returns a file's name in lowercase.
fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().to_lowercase()
}

fn is_images(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().contains("images")
}

/// Reads IDX files of images, with their label files.
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
