//! Truncates event files after a step.

use std::fs::{self, OpenOptions};
use std::path::Path;

use super::super::MetricsError;
use super::message;
use gpipe_data::tf_record::frame::{First, first};
use gpipe_partitioner::files;

/// Cuts off the records from the first one of a step after `last`, and an incomplete one; removes a
/// file that has no scalars then.
pub(super) fn after(path: &Path, last: u64) -> Result<(), MetricsError> {
    let bytes = files::read(path).map_err(MetricsError::io("read", path))?;
    let damaged = |offset: usize, why| MetricsError::Record {
        path: path.to_owned(),
        offset: offset as u64,
        why,
    };
    let (mut kept, mut any) = (0, false);
    while let Some(rest) = bytes.get(kept..).filter(|rest| !rest.is_empty()) {
        let (data, length) = match first(rest) {
            First::Whole(data, length) => (data, length),
            First::Torn => break,
            First::Damaged(why) => return Err(damaged(kept, why)),
        };
        let event = message::step(data);
        let (step, scalars) = event.ok_or_else(|| damaged(kept, "it is no event"))?;
        if step > last {
            break;
        }
        any |= scalars;
        kept += length;
    }
    if !any {
        return fs::remove_file(path).map_err(MetricsError::io("remove", path));
    }
    if kept == bytes.len() {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).open(path);
    let cut = file.and_then(|file| file.set_len(kept as u64));
    cut.map_err(MetricsError::io("cut", path))
}
