//! Mutation switch for tests: leaves out one of the calls that order the devices' work.
//!
//! Only in builds with debug assertions. A *site* is a call and its place, such as `wait
//! src/torch/streams/offload.rs:38`. `GPIPE_LEAVE_OUT=SITE` leaves that call out;
//! `GPIPE_SITES=FILE` appends the reached sites to a file (`tests/cuda/mutations`).

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::cuda;
use super::ids::Stream;
use crate::error::TorchError;

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

    /// `None` if neither variable is set.
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

    /// Returns whether the caller of the calling function is the site to leave out.
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
            // In one piece: other threads write there, too.
            let line = format!("{site}\n");
            let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
        same
    }
}

#[cfg(debug_assertions)]
pub(crate) use switch::left_out;

/// An always empty stream, by device.
static EMPTY: Mutex<BTreeMap<usize, Stream>> = Mutex::new(BTreeMap::new());

/// For an event with nothing before it.
pub(super) fn empty_stream(device: usize) -> Result<Stream, TorchError> {
    let mut empty = EMPTY.lock();
    if let Some(stream) = empty.get(&device) {
        return Ok(*stream);
    }
    let stream = cuda::stream(device)?;
    empty.insert(device, stream);
    Ok(stream)
}

/// Leaves nothing out.
#[cfg(not(debug_assertions))]
pub(crate) const fn left_out(_: &str) -> bool {
    false
}

/// Tests can only detect calls that the switch can leave out: so each kind of ordering call goes
/// through a single place, which asks the switch.
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    const CUDA: &str = "src/torch/streams/cuda.rs";
    const SHIM: &str = "src/torch/shim/streams.cpp";

    /// Texts of such calls, in Rust and C++, and the only files that may have them.
    const CALLS: [(&str, &[&str]); 13] = [
        ("ffi::record_stream(", &[CUDA]),
        ("ffi::enter_stream(", &[CUDA]),
        // The profiler measures with events, on one stream.
        (
            "RawEvent::record(",
            &[CUDA, "src/torch/profile/stopwatch.rs"],
        ),
        ("event.block(", &[CUDA]),
        ("event.synchronize(", &[CUDA]),
        ("gp_record_stream(", &["src/torch/ffi/streams.rs", SHIM]),
        ("gp_event_block(", &["src/torch/ffi/streams.rs", SHIM]),
        ("record_stream(stream", &[SHIM]),
        ("recordStream", &[]),
        ("->block(", &[SHIM]),
        ("->synchronize(", &[SHIM]),
        ("cudaStreamWaitEvent", &[]),
        ("exchangeStream(", &[SHIM]),
    ];

    fn each_source(folder: &Path, look: &mut impl FnMut(&Path, &str)) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                each_source(&path, look);
            } else if path
                .extension()
                .is_some_and(|end| end == "rs" || end == "cpp")
            {
                look(&path, &std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// The root of the workspace.
    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap()
            .to_owned()
    }

    #[test]
    fn calls_that_keep_the_order_are_in_one_place_each() {
        let root = root();
        let root = root.as_path();
        let mut found = BTreeSet::new();
        each_source(&root.join("src"), &mut |path, text| {
            let path = path.strip_prefix(root).unwrap();
            let devices_own = path.starts_with("src/simulated_cuda");
            let tests = path.ends_with("tests.rs") || path.ends_with("streams/left_out.rs");
            if devices_own || tests {
                return;
            }
            let has = |(call, _): &&(&'static str, _)| text.contains(call);
            let calls = CALLS.iter().filter(has);
            found.extend(calls.map(|(call, _)| (*call, path.to_str().unwrap().to_owned())));
        });
        let allowed = CALLS.iter().flat_map(|(call, files)| {
            let files = files.iter();
            files.map(|file| (*call, (*file).to_owned()))
        });
        assert_eq!(found, allowed.collect());
    }

    #[test]
    fn each_of_these_places_asks_whether_it_is_left_out() {
        let path = root().join(CUDA);
        let text = std::fs::read_to_string(path).unwrap();
        let calls = |function: &&str| {
            let copies = ["ffi::copy_to(", "ffi::copy_into("];
            let mut calls = CALLS.iter().map(|(call, _)| *call).chain(copies);
            calls.any(|call| function.contains(call))
        };
        let functions: Vec<&str> = text.split("fn ").filter(calls).collect();
        assert_eq!(functions.len(), 7, "{functions:#?}");
        for function in functions {
            assert!(function.contains("left_out(\""), "{function}");
        }
    }
}
