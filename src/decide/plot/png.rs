//! The picture as PNG, in builds with the feature `png`.

use crate::Failure;

/// Whether PNG can be written, or why not.
pub(super) fn available() -> Result<(), String> {
    if cfg!(feature = "png") {
        return Ok(());
    }
    Err(
        "this program was built without the feature `png` (`cargo build --features png`; wheels and archives \
         have it): choose a name that ends in .svg, which browsers show"
            .to_owned(),
    )
}

#[cfg(not(feature = "png"))]
pub(super) fn render(_: &str) -> Result<Vec<u8>, Failure> {
    available().map_err(Failure::Usage)?;
    Ok(Vec::new())
}

/// Renders the picture, with two pixels per unit of the drawing, on a light background.
#[cfg(feature = "png")]
pub(super) fn render(svg: &str) -> Result<Vec<u8>, Failure> {
    use resvg::tiny_skia::{Pixmap, Transform};
    use resvg::usvg::{Options, Tree};

    const SCALE: f32 = 2.0;
    /// DejaVu Sans, reduced to European languages and renamed, as its licence requires; see the
    /// folder.
    const FONT: &[u8] = include_bytes!("font/plot-sans.ttf");

    let mut options = Options {
        font_family: "Plot Sans".to_owned(),
        ..Options::default()
    };
    let fonts = options.fontdb_mut();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family("Plot Sans");
    let tree = Tree::from_str(svg, &options)?;
    let size = tree.size();
    let (width, height) = (
        (size.width() * SCALE) as u32,
        (size.height() * SCALE) as u32,
    );
    let mut pixels = Pixmap::new(width, height)
        .ok_or_else(|| anyhow::anyhow!("a picture of {width} x {height} pixels cannot be made"))?;
    resvg::render(
        &tree,
        Transform::from_scale(SCALE, SCALE),
        &mut pixels.as_mut(),
    );
    Ok(pixels.encode_png()?)
}
