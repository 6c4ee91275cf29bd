//! For tests of the tests: leaves out one of the calls that keep the order of the devices' work.
//!
//! Only in builds with debug assertions. A *site* is what is called and where, as
//! `wait src/torch/streams/offload.rs:38`. `GPIPE_LEAVE_OUT=SITE` leaves that call out;
//! `GPIPE_SITES=FILE` appends the sites that were reached to a file (`tests/cuda/mutations.rs`).

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::backend::Backend;
use super::ids::Stream;
use crate::torch::error::TorchError;

#[cfg(debug_assertions)]
mod switch {
    use std::collections::HashSet;
    use std::io::Write as _;
    use std::panic::Location;
    use std::sync::OnceLock;

    use parking_lot::Mutex;

    struct Switch {
        left_out: Option<String>,
        sites: Option<String>,
        reached: Mutex<HashSet<String>>,
    }

    /// None where neither variable is set.
    fn switch() -> Option<&'static Switch> {
        static SWITCH: OnceLock<Option<Switch>> = OnceLock::new();
        let read = || {
            let left_out = std::env::var("GPIPE_LEAVE_OUT").ok();
            let sites = std::env::var("GPIPE_SITES").ok();
            (left_out.is_some() || sites.is_some()).then(|| Switch {
                left_out,
                sites,
                reached: Mutex::default(),
            })
        };
        SWITCH.get_or_init(read).as_ref()
    }

    /// Whether the calling function's caller is a site that is left out.
    #[track_caller]
    pub(crate) fn left_out(what: &str) -> bool {
        let Some(switch) = switch() else {
            return false;
        };
        let caller = Location::caller();
        let site = format!("{what} {}:{}", caller.file(), caller.line());
        let same = switch.left_out.as_ref() == Some(&site);
        if let Some(path) = &switch.sites
            && switch.reached.lock().insert(site.clone())
        {
            let file = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(path);
            // A site that is not written is missed by the test that asked for it.
            let _ = file.and_then(|mut file| writeln!(file, "{site}"));
        }
        same
    }
}

#[cfg(debug_assertions)]
pub(crate) use switch::left_out;

/// By device, a stream in which nothing ever is.
static EMPTY: Mutex<BTreeMap<usize, Stream>> = Mutex::new(BTreeMap::new());

impl Backend {
    /// For an event with nothing before it.
    pub(super) fn empty_stream(&self, device: usize) -> Result<Stream, TorchError> {
        let mut empty = EMPTY.lock();
        if let Some(stream) = empty.get(&device) {
            return Ok(*stream);
        }
        let stream = self.stream(device)?;
        empty.insert(device, stream);
        Ok(stream)
    }
}

/// Nothing is left out.
#[cfg(not(debug_assertions))]
pub(crate) const fn left_out(_: &str) -> bool {
    false
}
