//! Names on bars: of one form and of one size in a picture.

use crate::render::chunks::Chunks;
use crate::schedule::{Action, ActionKind};
use crate::timeline::Timeline;
use crate::units::Micros;

/// A size of names.
#[derive(Debug)]
struct Size {
    /// An attribute.
    class: &'static str,
    /// A digit's width.
    digit: f64,
    /// How many digits a W has more than one.
    wide: f64,
    /// What stays free of a bar.
    free: f64,
}

/// The largest first, as `zoom.js` has them.
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

/// How the names of a picture are written.
#[derive(Debug)]
pub(super) struct Names {
    /// Whether names have their stage: without it an action of one of several is two.
    stages: bool,
    /// Of the highest micro-batch: names of one kind need the same room.
    digits: usize,
    size: &'static Size,
}

impl Names {
    /// Of these timelines, where so much time is a pixel. The size is the largest in which nine of ten
    /// names fit of those that fit at all.
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

    /// An action's name where it fits so many pixels, and the attribute of its size.
    pub(super) fn of(&self, action: Action, width: f64) -> Option<(String, &'static str)> {
        let fits = self.fits(action, width, self.size);
        fits.then(|| (self.name(action), self.size.class))
    }

    /// The same of the exchange of a stage's gradients.
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
