//! Decodes and crops compressed images.

use std::fs;
use std::path::Path;

use tch::Tensor;

use super::pillow;
use crate::Random;

/// Limit of an image's side: photographs have no longer ones.
const MOST_SIDE: u32 = 1 << 15;
/// Memory limit of decoding an image.
const MOST_MEMORY: u64 = 1 << 29;

/// Size limit of an image file; the decoder has its own limits of the decoded size.
const MOST_BYTES: u64 = 1 << 29;

/// The conversion of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Picture {
    channels: i64,
    height: u32,
    width: u32,
    /// Length of the shorter side before cropping.
    resize: u32,
}

impl Picture {
    /// Makes a conversion to channels, height and width; images are scaled to a shorter side of
    /// `resize` and then cropped.
    pub(super) fn new([channels, height, width]: [i64; 3], resize: Option<usize>) -> Self {
        let (height, width) = (height as u32, width as u32);
        let shorter = height.min(width);
        Self {
            channels,
            height,
            width,
            // 256 for the usual 224.
            resize: resize
                .map_or(shorter.div_ceil(7) * 8, |own| own as u32)
                .max(shorter),
        }
    }

    /// Decodes an image to numbers from 0 to 1.
    ///
    /// *Shapes*: `[channels, height, width]`.
    ///
    /// *Determinism*: crop and flip depend only on `random`; without it, images are cropped in the
    /// middle and not flipped.
    ///
    /// # Errors
    /// The image is not a JPEG or PNG, or is damaged, truncated or too large.
    pub(super) fn decode(
        &self,
        bytes: &[u8],
        random: Option<&mut Random>,
    ) -> anyhow::Result<Tensor> {
        let image = pillow::eight_bits(open(bytes)?);
        let image = match self.channels {
            1 => pillow::grey(image),
            _ => image,
        };
        let (width, height) = (image.width(), image.height());
        let scale = f64::from(self.resize) / f64::from(self.height.min(self.width));
        // The visible share, if the whole image would cover the area that is cropped from.
        let cover = |own: u32, side: u32| f64::from(side) / (f64::from(own) * scale);
        let ratio = cover(self.width, width).min(cover(self.height, height));
        let kept = |own: u32, side: u32| {
            let kept = (f64::from(own) * ratio).round() as u32;
            kept.clamp(1, side)
        };
        let (across, down) = (kept(self.width, width), kept(self.height, height));
        let (left, top, flip) = match random {
            Some(random) => (
                random.below(u64::from(width - across) + 1) as u32,
                random.below(u64::from(height - down) + 1) as u32,
                random.coin(),
            ),
            None => ((width - across) / 2, (height - down) / 2, false),
        };
        let image = image.crop_imm(left, top, across, down);
        let filter = image::imageops::FilterType::Triangle;
        let image = image.resize_exact(self.width, self.height, filter);
        let image = if flip { image.fliph() } else { image };
        let bytes = if self.channels == 1 {
            image.into_luma8().into_raw()
        } else {
            image.into_rgb8().into_raw()
        };
        let sides = [self.height.into(), self.width.into(), self.channels];
        let pixels = Tensor::f_from_data_size(&bytes, &sides, tch::Kind::Uint8)?;
        let planes = pixels.f_permute([2, 0, 1])?.f_to_kind(tch::Kind::Float)?;
        Ok(planes.f_contiguous()?.f_div_scalar(255.0)?)
    }
}

/// Checks that an image can be decoded.
///
/// # Errors
/// As [`Picture::decode`].
pub(super) fn readable(bytes: &[u8]) -> anyhow::Result<()> {
    open(bytes).map(drop)
}

/// Decodes an image at its own size, with one or three channels.
fn open(bytes: &[u8]) -> anyhow::Result<image::DynamicImage> {
    use image::{ImageFormat, ImageReader, Limits};
    anyhow::ensure!(!bytes.is_empty(), "the file is empty");
    let mut limits = Limits::default();
    limits.max_image_width = Some(MOST_SIDE);
    limits.max_image_height = Some(MOST_SIDE);
    limits.max_alloc = Some(MOST_MEMORY);
    let mut reader = ImageReader::new(std::io::Cursor::new(bytes)).with_guessed_format()?;
    let format = reader.format();
    anyhow::ensure!(
        matches!(format, Some(ImageFormat::Jpeg | ImageFormat::Png)),
        "this is no JPEG or PNG image"
    );
    if format == Some(ImageFormat::Jpeg) {
        anyhow::ensure!(
            is_whole(bytes),
            "the image is cut off: was it copied whole?"
        );
    }
    reader.limits(limits);
    // With debug assertions, damaged images make the decoder panic.
    let image = gpipe_engine::panics::caught(|| reader.decode());
    match image {
        Ok(Ok(image)) => Ok(image),
        Ok(Err(error)) => {
            let why = error.to_string();
            anyhow::bail!("the image cannot be read: {}", why.trim_end_matches('.'))
        }
        Err(why) => anyhow::bail!("the image cannot be read: its parts do not go together ({why})"),
    }
}

/// Whether a JPEG is complete: its decoder fills in missing data. Its data contains no markers, and a
/// thumbnail in its header ends before the data begins.
fn is_whole(jpeg: &[u8]) -> bool {
    let last = |marker: u8| jpeg.windows(2).rposition(|two| two == [0xff, marker]);
    match (last(0xd9), last(0xda)) {
        (Some(end), Some(scan)) => end > scan,
        _ => false,
    }
}

/// Reads an image file.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let size = fs::metadata(path)?.len();
    anyhow::ensure!(
        size <= MOST_BYTES,
        "its {size} bytes are too many for an image"
    );
    Ok(gpipe_partitioner::files::read(path)?)
}
