//! Colour conversions with the same results as Pillow, and so as torchvision, so that weights trained
//! there see the same inputs here, and vice versa.

use image::{DynamicImage, ImageBuffer};

/// Converts to eight bits per channel without transparency, like `convert("RGB")`, but keeps greyscale.
///
/// Of 16 bits, takes the upper eight. Pillow does the same for colours; for greyscale it clips above
/// 255, which destroys most images.
pub(super) fn eight_bits(image: DynamicImage) -> DynamicImage {
    let upper =
        |all: Vec<u16>| -> Vec<u8> { all.into_iter().map(|own| (own >> 8) as u8).collect() };
    let (width, height) = (image.width(), image.height());
    let halved = match image {
        DynamicImage::ImageLuma16(_) | DynamicImage::ImageLumaA16(_) => {
            let bytes = upper(image.to_luma16().into_raw());
            ImageBuffer::from_raw(width, height, bytes).map(DynamicImage::ImageLuma8)
        }
        DynamicImage::ImageRgb16(_) | DynamicImage::ImageRgba16(_) => {
            let bytes = upper(image.to_rgb16().into_raw());
            ImageBuffer::from_raw(width, height, bytes).map(DynamicImage::ImageRgb8)
        }
        _ => None,
    };
    match (halved, image) {
        (Some(halved), _) => halved,
        (None, DynamicImage::ImageLumaA8(own)) => {
            DynamicImage::ImageLumaA8(own).into_luma8().into()
        }
        (None, own @ DynamicImage::ImageLuma8(_)) => own,
        (None, own) => own.into_rgb8().into(),
    }
}

/// Converts to one channel of eight bits: `convert("L")`, the luma of ITU-R BT.601 in integer
/// arithmetic.
pub(super) fn grey(image: DynamicImage) -> DynamicImage {
    let DynamicImage::ImageRgb8(image) = image else {
        return image;
    };
    let luma = |[red, green, blue]: [u8; 3]| {
        let of = |own: u8, weight: u32| u32::from(own) * weight;
        ((of(red, 19_595) + of(green, 38_470) + of(blue, 7_471) + 0x8000) >> 16) as u8
    };
    let (width, height) = image.dimensions();
    let bytes: Vec<u8> = image.pixels().map(|own| luma(own.0)).collect();
    ImageBuffer::from_raw(width, height, bytes)
        .map_or_else(|| image.into(), DynamicImage::ImageLuma8)
}
