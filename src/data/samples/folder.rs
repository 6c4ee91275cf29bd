//! Image folders as a source.

use std::path::Path;

use tch::Tensor;

use super::images::{Images, classes};
use super::picture::Picture;
use crate::{DataError, Place, Source};

/// JPEG and PNG images in a folder per class; needs the feature `images`.
///
/// Items are pairs: `[channels, height, width]` of `f32` from 0 to 1, and the class number, an `i64`
/// without dimensions.
///
/// ```no_run
/// use gpipe::data::{Dataset, ImageFolder};
///
/// let images = ImageFolder::open("images/".as_ref(), [3, 224, 224])?.augmented(7);
/// println!("{:?}", images.classes());
/// let batches = Dataset::new(images).shuffle(usize::MAX, 7).batch(32).workers(4);
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug)]
pub struct ImageFolder {
    images: Images,
    classes: Vec<String>,
}

impl ImageFolder {
    /// Lists the images of a folder, to be scaled and cropped to channels, height and width; classes
    /// are numbered by the sorted names of their folders. No image is read yet.
    ///
    /// # Errors
    /// There is no class folder, one has no images, an image has another format or is outside the class
    /// folders, or a size is 0 or too large.
    pub fn open(folder: &Path, size: [i64; 3]) -> Result<Self, DataError> {
        if !matches!(size[0], 1 | 3) || size[1..].iter().any(|side| !(1..=1 << 15).contains(side)) {
            return Err(DataError::Settings(format!(
                "images of {size:?} cannot be: they have 1 or 3 channels, and sides of 1 to 32768"
            )));
        }
        let classes = classes(folder)?;
        let images = Images::list(folder, &classes, Picture::new(size, None))?;
        Ok(Self { images, classes })
    }

    /// Enables random crops and flips, determined by this seed, the epoch and the image's index.
    #[must_use]
    pub fn augmented(mut self, seed: u64) -> Self {
        self.images.seed = Some(seed);
        self
    }

    /// Returns the class names in order of their numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Source for ImageFolder {
    type Item = (Tensor, Tensor);

    fn len(&self) -> usize {
        self.images.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Self::Item, DataError> {
        self.images.get(epoch, index)
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.images.place(epoch, index)
    }

    fn identity(&self) -> String {
        let seed = self.images.seed;
        let seed = seed.map_or_else(String::new, |seed| format!(", augmented with seed {seed}"));
        format!("{}{seed}", self.images.identity())
    }
}
