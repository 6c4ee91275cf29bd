//! A compressed image to the numbers that a model takes.

use std::fs;
use std::path::Path;

use tch::Tensor;

use super::pillow;
use crate::Random;

/// Longer sides are none of a photograph.
const MOST_SIDE: u32 = 1 << 15;
/// Bytes that decoding one may take.
const MOST_MEMORY: u64 = 1 << 29;

/// No image has more: a decoder has limits of its own for what they become.
const MOST_BYTES: u64 = 1 << 29;

/// What images become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Picture {
    channels: i64,
    height: u32,
    width: u32,
    /// The shorter side before it is cropped.
    resize: u32,
}

impl Picture {
    /// Channels, height and width, of images that are scaled to a shorter side of `resize` before
    /// they are cropped.
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

    /// An image as numbers from 0 to 1.
    ///
    /// *Shapes*: `[channels, height, width]`.
    ///
    /// *Determinism*: where it is cropped, and whether it is flipped, `random` alone decides; in
    /// the middle and not, where there is none.
    ///
    /// # Errors
    /// It is no JPEG or PNG, is damaged, cut off or too large.
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
        // The part of the image that is kept, where all of it would cover what is cropped from.
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

/// That an image can be decoded.
///
/// # Errors
/// As [`Picture::decode`].
pub(super) fn readable(bytes: &[u8]) -> anyhow::Result<()> {
    open(bytes).map(drop)
}

/// An image in its own size, of one channel or of three.
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
    // Where debug assertions are on, the decoder has some that damaged images do not hold.
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

/// Whether a JPEG ends: its decoder fills in what is missing. Within its data no marker can be, and
/// a small image inside of its head ends before the data begins.
fn is_whole(jpeg: &[u8]) -> bool {
    let last = |marker: u8| jpeg.windows(2).rposition(|two| two == [0xff, marker]);
    match (last(0xd9), last(0xda)) {
        (Some(end), Some(scan)) => end > scan,
        _ => false,
    }
}

/// The bytes of an image.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let size = fs::metadata(path)?.len();
    anyhow::ensure!(
        size <= MOST_BYTES,
        "its {size} bytes are too many for an image"
    );
    Ok(gpipe_partitioner::files::read(path)?)
}
