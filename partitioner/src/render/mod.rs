//! Rendering of timelines: one exporter per file. All pages share one style.

mod chunks;
mod compare;
mod grid;
mod html;
mod memory;
mod page;
mod profile;
mod schedules;
mod svg;
mod sweep;
mod text;
mod ticks;
mod trace;

pub use compare::{ComparePage, StepMemory, compare_html, compare_svg, compare_text};
pub use grid::grid;
pub use html::{SimulationPage, html};
pub use profile::{PageError, ProfilePage};
pub use schedules::{Compared, SchedulesPage};
pub use svg::{in_a_row_svg, svg};
pub use sweep::sweep_html;
pub use text::text;
pub use trace::chrome_trace;
