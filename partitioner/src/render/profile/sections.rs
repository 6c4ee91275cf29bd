//! The page, section by section.

use super::super::memory::{self, Curve};
use super::super::page::{Page, chart, escaped, sentence, whole_sentence};
use super::super::{html, svg};
use super::{ProfilePage, header, layers, schedules};
use crate::ids::DeviceId;
use crate::machine::Device;

/// Most actions that are drawn one by one.
const MAX_DRAWN: usize = 30_000;

impl ProfilePage<'_> {
    /// Returns the page: the choices, the layers with the cuts between them, the predicted
    /// timeline, memory over time, the compared schedules, and doubts. Loads nothing; readable in
    /// light and dark and in black and white, by keyboard and by screen reader, and without its
    /// script.
    pub fn html(&self) -> String {
        let mut page = Page::new("profile and plan", &self.title);
        if let Some(about) = &self.about {
            page.intro(&format!("<p class=\"hint\">{}</p>\n", escaped(about)));
        }
        page.facts(&header::facts(self));
        page.intro(&header::words(self));
        page.intro(&header::peaks(self));
        page.intro(&header::origin(self));
        page.section("layers", "Layers and cuts", &layers::section(self));
        page.section("timeline", "Predicted timeline", &self.timeline());
        page.section("memory", "Memory over time", &self.memory());
        page.section("schedules", "Schedules compared", &schedules::section(self));
        if !self.notes.is_empty() {
            let notes = self.notes.iter();
            let notes = notes.map(|note| format!("<p>{}</p>\n", whole_sentence(note)));
            page.section("notes", "About this plan", &notes.collect::<String>());
        }
        page.section("doubts", "Doubts", &self.doubts());
        page.finish()
    }

    fn timeline(&self) -> String {
        let timeline = &self.simulation.timeline;
        let actions = timeline.spans().len();
        let mut html = if actions <= MAX_DRAWN {
            let label = "Predicted timeline of the devices";
            chart(label, &svg::in_a_page(timeline))
        } else {
            let why = format!(
                "{actions} actions are too many for a picture: `gpipe-rs simulate --format trace` writes \
                 them for a viewer that zooms."
            );
            format!("{}<p>{}</p>\n", svg::canvas::shared(), sentence(&why))
        };
        html.push_str(&html::devices(timeline, None));
        html
    }

    /// Returns the memory of each device over the step.
    fn curves(&self) -> Vec<Curve> {
        let devices = self.options.machine.devices().iter().enumerate();
        let curve = |(device, machine): (usize, &Device)| Curve {
            limit: machine.memory,
            ..Curve::new(&self.simulation, DeviceId(device))
        };
        devices.map(curve).collect()
    }

    fn memory(&self) -> String {
        let words = "Parameters and the optimizer\u{2019}s state are there all the time, gradients of parameters \
             from the first that is made until the optimizer\u{2019}s step. On top of them are \
             the activations of micro-batches between their forward and their backward, and what an \
             action needs while it runs.";
        memory::section(self.curves(), self.simulation.makespan(), words)
    }

    fn doubts(&self) -> String {
        match self.doubts.as_deref() {
            None if self.is_computed() => {
                "<p>Nothing was measured: all times and bytes are computed.</p>\n".to_owned()
            }
            None => {
                "<p>The file with the profile does not tell how far its measurements are apart: \
                     <code>gpipe-rs profile</code> does.</p>\n"
                    .to_owned()
            }
            Some([]) => {
                "<p>Nothing was seen that speaks against the measurements.</p>\n".to_owned()
            }
            Some(doubts) => {
                let items = doubts
                    .iter()
                    .map(|doubt| format!("<li>{}</li>\n", sentence(doubt)));
                format!(
                    "<ul class=\"doubts\">\n{}</ul>\n",
                    items.collect::<String>()
                )
            }
        }
    }
}
