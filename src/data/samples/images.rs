//! Folders of images, with a folder per class.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpipe_partitioner::words::listed;

use super::found::{Found, Labels};
use super::picture::{Picture, read};
use super::scaling::Usual;
use super::{Pair, SampleOptions, damage};
use crate::{DataError, Phase, Place, Random, Source};

/// Extensions of supported images.
pub(super) const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Extensions of unsupported images.
const OTHERS: [&str; 8] = ["gif", "webp", "bmp", "tif", "tiff", "heic", "avif", "jxl"];
/// Limit of nested folders.
const DEEPEST: usize = 8;

/// Images with their classes.
#[derive(Debug)]
pub(super) struct Images {
    folder: Arc<Path>,
    /// Relative paths in order, with class numbers.
    files: Arc<[(PathBuf, i64)]>,
    identity: Arc<str>,
    picture: Picture,
    /// Seed of random crops and flips, if requested.
    pub(super) seed: Option<u64>,
}

pub(super) fn found(
    folder: &Path,
    test: Option<&Path>,
    options: &SampleOptions,
) -> Result<Found, DataError> {
    let (image, picture) = options.picture()?;
    let known = options.kept.as_ref().map(|kept| &kept.names[..]);
    let names = match known.filter(|names| !names.is_empty()) {
        Some(names) => names.to_vec(),
        None => classes(folder)?,
    };
    let plain = Images::list(folder, &names, picture)?;
    let train = Images {
        seed: options.augment.then_some(options.seed),
        folder: Arc::clone(&plain.folder),
        files: Arc::clone(&plain.files),
        identity: Arc::clone(&plain.identity),
        picture,
    };
    let test = test
        .map(|test| Images::list(test, &names, picture))
        .transpose()?;
    let all = [&plain].into_iter().chain(&test);
    let damaged = damage::checked(folder, all.flat_map(Images::paths), options.skip_bad)?;
    Ok(Found {
        input: image.to_vec(),
        known: plain.files.iter().map(|(_, class)| *class).collect(),
        damaged,
        teaches_nothing: alone(folder, &names),
        labels: Labels::Named(names),
        usual: Usual::ImageNet,
        about: ["image", "images"],
        plain: Arc::new(plain),
        ..Found::new(train, test)
    })
}

/// Explains why a single class teaches nothing; its folder may have been given instead of its parent.
fn alone(folder: &Path, names: &[String]) -> Option<String> {
    let [only] = names else {
        return None;
    };
    let inside = folder.join(only);
    let several =
        entries(&inside).is_ok_and(|all| all.values().filter(|own| own.is_dir()).count() > 1);
    let instead = if several {
        format!(
            "if the classes are the folders in {0}, name {0}",
            inside.display()
        )
    } else {
        "put the images of another class in a folder beside it".to_owned()
    };
    Some(format!(
        "there is one class, `{only}`, and nothing to tell it from: {instead}"
    ))
}

/// Returns the names of the class folders, sorted.
pub(super) fn classes(folder: &Path) -> Result<Vec<String>, DataError> {
    let mut names = Vec::new();
    for (name, path) in entries(folder)? {
        if path.is_dir() {
            names.push(name);
        }
    }
    if names.is_empty() {
        let what = "there is no folder in it: put the images of each class in a folder of its own";
        return Err(DataError::bad_path(folder, what));
    }
    Ok(names)
}

/// Returns the entries of a folder that are not hidden, sorted.
pub(super) fn entries(folder: &Path) -> Result<BTreeMap<String, PathBuf>, DataError> {
    let read = |source| DataError::read(folder, source);
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let name = path.file_name().unwrap_or_default();
        let Some(name) = name.to_str() else {
            return Err(DataError::bad_path(
                &path,
                "its name is not UTF-8: rename it",
            ));
        };
        if !name.starts_with('.') {
            all.insert(name.to_owned(), path);
        }
    }
    Ok(all)
}

/// Returns a name's extension in lowercase.
pub(super) fn ending(path: &Path) -> String {
    let ending = path.extension().unwrap_or_default();
    ending.to_string_lossy().to_lowercase()
}

impl Images {
    /// Lists the images of classes; a folder that is not a class is an error.
    pub(super) fn list(
        folder: &Path,
        names: &[String],
        picture: Picture,
    ) -> Result<Self, DataError> {
        let mut files = Vec::new();
        for (name, path) in entries(folder)? {
            if !path.is_dir() {
                refuse_image(&path)?;
                continue;
            }
            let class = names.iter().position(|own| *own == name).ok_or_else(|| {
                let names = listed(names.iter().map(String::as_str));
                let what = format!("there is no class `{name}` in what is trained on: {names}");
                DataError::bad_path(&path, what)
            })?;
            let before = files.len();
            walk(&path, DEEPEST, &mut |image| {
                let image = image.strip_prefix(folder).unwrap_or(image);
                files.push((image.to_owned(), class as i64));
            })?;
            if files.len() == before {
                let what = "it has no image: a class has .jpg, .jpeg or .png files";
                return Err(DataError::bad_path(&path, what));
            }
        }
        if files.is_empty() {
            let what = "there is no image in it: a class has a folder of .jpg, .jpeg or .png files";
            return Err(DataError::bad_path(folder, what));
        }
        Self::of_files(folder, files, names.len(), picture)
    }

    /// Lists one image, or all images in a folder and its subfolders.
    pub(super) fn unlabelled(path: &Path, picture: Picture) -> Result<Self, DataError> {
        if !path.is_dir() {
            let file = PathBuf::from(path.file_name().unwrap_or_default());
            let folder = path.parent().unwrap_or(Path::new(""));
            return Self::of_files(folder, vec![(file, 0)], 1, picture);
        }
        let mut files = Vec::new();
        walk(path, DEEPEST, &mut |image| {
            let image = image.strip_prefix(path).unwrap_or(image);
            files.push((image.to_owned(), 0));
        })?;
        if files.is_empty() {
            let what = "there is no image in it, which would be a .jpg, .jpeg or .png file";
            return Err(DataError::bad_path(path, what));
        }
        Self::of_files(path, files, 1, picture)
    }

    fn of_files(
        folder: &Path,
        files: Vec<(PathBuf, i64)>,
        classes: usize,
        picture: Picture,
    ) -> Result<Self, DataError> {
        let mut sum = 0;
        for (file, _) in &files {
            let path = folder.join(file);
            let size = fs::metadata(&path)
                .map_err(|source| DataError::read(&path, source))?
                .len();
            sum = crc32c::crc32c_append(sum, file.as_os_str().as_encoded_bytes());
            sum = crc32c::crc32c_append(sum, &size.to_le_bytes());
        }
        let count = files.len();
        let identity = format!("{count} images of {classes} classes with checksum {sum:08x}");
        Ok(Self {
            folder: folder.into(),
            files: files.into(),
            identity: identity.into(),
            picture,
            seed: None,
        })
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> + '_ {
        (0..self.files.len()).map(|index| self.path(index))
    }

    fn path(&self, index: usize) -> PathBuf {
        self.folder.join(&self.files[index].0)
    }

    fn picture(&self, epoch: u64, index: usize) -> anyhow::Result<Pair> {
        let path = self.path(index);
        let bytes = read(&path)?;
        let mut random = self.seed.map(|seed| Random::of_item(seed, epoch, index));
        let decode = || self.picture.decode(&bytes, random.as_mut());
        let x = Phase::Decode.during(decode)?;
        Ok((x, tch::Tensor::from(self.files[index].1)))
    }
}

/// Rejects an image outside the class folders, which would be left out by mistake.
fn refuse_image(path: &Path) -> Result<(), DataError> {
    if !ENDINGS.contains(&ending(path).as_str()) {
        return Ok(());
    }
    let what = "this image is in no folder of a class: move it to one";
    Err(DataError::bad_path(path, what))
}

/// Visits the images of a folder and its subfolders, in sorted order.
fn walk(folder: &Path, deep: usize, show: &mut impl FnMut(&Path)) -> Result<(), DataError> {
    for path in entries(folder)?.into_values() {
        let ending = ending(&path);
        if path.is_dir() {
            if deep == 0 {
                let what = format!("there are more than {DEEPEST} folders inside of each other");
                return Err(DataError::bad_path(&path, what));
            }
            walk(&path, deep - 1, show)?;
        } else if ENDINGS.contains(&ending.as_str()) {
            show(&path);
        } else if OTHERS.contains(&ending.as_str()) {
            let what = "only .jpg, .jpeg and .png are read: convert it, or take it away";
            return Err(DataError::bad_path(&path, what));
        }
    }
    Ok(())
}

impl Source for Images {
    type Item = Pair;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Pair, DataError> {
        self.picture(epoch, index)
            .map_err(|source| DataError::Item {
                place: self.place(epoch, index),
                source,
            })
    }

    fn place(&self, _: u64, index: usize) -> Place {
        Place::Path(self.path(index))
    }

    fn identity(&self) -> String {
        self.identity.to_string()
    }
}
