//! Names on bars: of one form and size per picture.

use crate::render::chunks::Chunks;
use crate::schedule::{Action, ActionKind};
use crate::timeline::Timeline;
use crate::units::Micros;

/// A size of names.
#[derive(Debug)]
struct Size {
    /// The class attribute.
    class: &'static str,
    /// Width of a digit.
    digit: f64,
    /// Extra width of a W, in digits.
    wide: f64,
    /// Free space of a bar.
    free: f64,
}

/// The largest first; same as in `zoom.js`.
static SIZES: [Size; 3] = [
    Size {
        class: "",
        digit: 6.8,
        wide: 0.5,
        free: 2.0,
    },
    Size {
        class: " class=\"s\"",
        digit: 5.2,
        wide: 0.6,
        free: 2.0,
    },
    Size {
        class: " class=\"t\"",
        digit: 4.4,
        wide: 0.6,
        free: 1.0,
    },
];

/// Form of the names of a picture.
#[derive(Debug)]
pub(super) struct Names {
    /// Whether names include the stage, as necessary if a device has several.
    stages: bool,
    /// Digits of the highest micro-batch: names of one kind need the same room.
    digits: usize,
    size: &'static Size,
}

impl Names {
    /// Chooses the form for these timelines, with `pixel` per pixel. The size is the largest in which
    /// at least nine of ten of the names that fit at all fit.
    pub(super) fn new(chunks: &Chunks, timelines: &[&Timeline], pixel: Micros) -> Self {
        let spans = || timelines.iter().flat_map(|timeline| timeline.spans());
        let highest = spans().map(|span| span.action.micro).max();
        let mut names = Self {
            stages: !chunks.one_each(),
            digits: highest.map_or(1, |micro| micro.to_string().len()),
            size: &SIZES[0],
        };
        let width = |time: Micros| time.get() / pixel.get().max(f64::MIN_POSITIVE);
        let fit = |size: &Size| {
            let fits = |action, time| names.fits(action, width(time), size);
            spans()
                .filter(|span| fits(span.action, span.duration()))
                .count()
        };
        let counts = SIZES.each_ref().map(fit);
        let enough = |count: usize| 10 * count >= 9 * counts[SIZES.len() - 1];
        let size = SIZES.iter().zip(counts).find(|(_, count)| enough(*count));
        names.size = size.map_or(names.size, |(size, _)| size);
        names
    }

    /// Returns an action's name if it fits `width` pixels, and the attribute of its size.
    pub(super) fn of(&self, action: Action, width: f64) -> Option<(String, &'static str)> {
        let fits = self.fits(action, width, self.size);
        fits.then(|| (self.name(action), self.size.class))
    }

    /// Same as `of`, for the exchange of a stage's gradients.
    pub(super) fn of_exchange(&self, stage: &str, width: f64) -> Option<(String, &'static str)> {
        let name = if self.stages {
            format!("{stage}A")
        } else {
            "A".to_owned()
        };
        let needs = name.len() as f64 * self.size.digit + self.size.free;
        (needs < width).then_some((name, self.size.class))
    }

    pub(super) fn name(&self, action: Action) -> String {
        if self.stages {
            action.to_string()
        } else {
            format!("{}{}", action.kind.letter(), action.micro)
        }
    }

    fn fits(&self, action: Action, width: f64, size: &Size) -> bool {
        let stage = if self.stages {
            action.stage.to_string().len()
        } else {
            0
        };
        let wide = if action.kind == ActionKind::BackwardWeight {
            size.wide
        } else {
            0.0
        };
        ((stage + 1 + self.digits) as f64 + wide) * size.digit + size.free < width
    }
}
