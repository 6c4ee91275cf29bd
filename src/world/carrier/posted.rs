//! Receives that have begun before anybody knows of a next step.
//!
//! A message moves once its receiver has said that it waits, which costs a message of its own. Most
//! steps run the program of the step before: what a device elsewhere has sent in that one is
//! received again when its last value is there, while the processes have other things to wait for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;

use super::super::{Group, Lost, Transfer};
use super::arrivals::{MARK, Place};
use crate::tch::Kind;
use crate::torch::wire::FIRST;

/// No more are begun ahead, of all devices together: each has memory for a small value.
const MOST: usize = 512;

/// Receives of first messages, by the rank and the tag that they are from.
#[derive(Debug, Default)]
pub(super) struct Posted(Mutex<HashMap<(usize, u32), Transfer>>);

impl Posted {
    /// The receive of a value's first message, begun now if it is not yet.
    pub(super) fn take(&self, group: &Group, from: usize, tag: u32) -> Result<Transfer, Lost> {
        let begun = self.0.lock().remove(&(from, tag));
        begun.map_or_else(|| begin(group, from, tag), Ok)
    }

    /// Begins to receive from these places again.
    pub(super) fn again(&self, group: &Group, from: usize, places: &[Place]) -> Result<(), Lost> {
        for place in places {
            let mut all = self.0.lock();
            if all.len() >= MOST {
                break;
            }
            if let Entry::Vacant(own) = all.entry((from, place.tag)) {
                own.insert(begin(group, from, place.tag)?);
            }
        }
        Ok(())
    }
}

fn begin(group: &Group, from: usize, tag: u32) -> Result<Transfer, Lost> {
    let length = MARK + FIRST;
    group.receive(&[length as i64], Kind::Uint8, from, tag)
}
