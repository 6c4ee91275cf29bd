//! Numbers in libtorch's messages about a device that is out of memory.

use std::fmt::Write as _;

use gpipe_partitioner::Bytes;
use tch::Device;
use thiserror::Error;

use super::memory;

/// A device has too little memory for a computation.
#[doc(alias = "OOM")]
///
/// It is a cause of the [`StageError`](gpipe_engine::StageError) that names stage, layer
/// and micro-batch. The step is undone, and the pipeline can still be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.sentence())]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device: `cpu`, `cuda:0`, …. CUDA's own calls do not say whether the device's memory
    /// or the host's page-locked memory is full: both are named.
    pub device: String,
    /// Bytes requested.
    pub asked: Option<Bytes>,
    /// Bytes free.
    pub free: Option<Bytes>,
    /// Limit of the process, if there is one.
    pub limit: Option<Bytes>,
    /// Whether it is another device than the one that asked: a stage's outputs take the receiver's
    /// memory.
    pub elsewhere: bool,
}

impl OutOfMemory {
    fn sentence(&self) -> String {
        let mut text = format!("{} is out of memory", self.device);
        let known = [
            (": ", self.asked, "asked for"),
            (", ", self.free, "free"),
            (", ", self.limit, "allowed"),
        ];
        for (before, bytes, what) in known {
            if let Some(bytes) = bytes {
                // Writing to a string cannot fail.
                let _ = write!(text, "{before}{bytes} {what}");
            }
        }
        let stages = if self.elsewhere {
            format!("the stages on {}", self.device)
        } else {
            "this stage".to_owned()
        };
        text + " (use more micro-batches, which are smaller; recompute; or give "
            + &stages
            + " fewer layers)"
    }

    /// Parses an error of libtorch on this device; `None` if it is of another kind.
    fn read(device: Device, text: &str) -> Option<Self> {
        if let Some((_, text)) = text.split_once("CUDA out of memory. Tried to allocate ") {
            // Of the two devices of a copy, the one named.
            let full = gpu_of(text).unwrap_or_else(|| name(device));
            return Some(Self {
                elsewhere: full != name(device),
                device: full,
                asked: quantity(text),
                free: before(text, " is free"),
                limit: before(text, " allowed"),
            });
        }
        // Not from the device's allocator.
        if text.contains("CUDA error: out of memory") {
            return Some(Self {
                device: format!("{} or page-locked memory of the host", name(device)),
                asked: None,
                free: None,
                limit: None,
                elsewhere: false,
            });
        }
        // The host's allocator.
        let (_, text) = text.split_once("can't allocate memory: you tried to allocate ")?;
        let room = memory::room_on(Device::Cpu).ok();
        Some(Self {
            device: name(Device::Cpu),
            asked: quantity(text),
            free: room.map(|(free, _)| free),
            limit: None,
            elsewhere: false,
        })
    }

    /// Puts it in front of an error that is of this kind.
    pub(crate) fn explain(device: Device, error: anyhow::Error) -> anyhow::Error {
        if error.is::<Self>() {
            return error;
        }
        let told = error
            .chain()
            .find_map(|cause| Self::read(device, &cause.to_string()));
        match told {
            Some(told) => error.context(told),
            None => error,
        }
    }
}

fn name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}

/// The device that the allocator of CUDA devices names: ` GPU 1 has a total capacity`.
fn gpu_of(text: &str) -> Option<String> {
    let (_, text) = text.split_once(" GPU ")?;
    let index: usize = text.split_whitespace().next()?.parse().ok()?;
    Some(name(Device::Cuda(index)))
}

/// The quantity at the beginning of a text: `2.00 GiB. …`, `512 bytes`.
fn quantity(text: &str) -> Option<Bytes> {
    let mut words = text.split_whitespace();
    let number = words.next()?;
    let unit = words
        .next()?
        .trim_matches(|c: char| !c.is_ascii_alphabetic());
    let unit = if unit == "bytes" { "B" } else { unit };
    format!("{number}{unit}").parse().ok()
}

/// The quantity right before some words.
fn before(text: &str, words: &str) -> Option<Bytes> {
    let (text, _) = text.split_once(words)?;
    let mut last = text.split_whitespace().rev();
    let (unit, number) = (last.next()?, last.next()?);
    quantity(&format!("{number} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cudas_message_is_read() {
        let text = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity \
                    of 79.15 GiB of which 1.25 GiB is free. Process 7 has 1.00 GiB memory in \
                    use. 24.00 GiB allowed; Of the allocated memory 22.00 GiB is allocated by \
                    PyTorch";
        let told = OutOfMemory::read(Device::Cuda(1), text).unwrap();
        let gib = |number: u64| Some(Bytes(number << 28));
        assert_eq!(
            (told.asked, told.free, told.limit),
            (gib(10), gib(5), gib(96))
        );
        let sentence = told.to_string();
        assert!(
            sentence.starts_with(
                "cuda:1 is out of memory: 2.5 GiB asked for, 1.2 GiB free, 24.0 GiB allowed"
            ),
            "{sentence}"
        );
    }

    /// Outputs of stage 0 on cuda:0 take memory of cuda:1: the error once named the sender's
    /// device.
    #[test]
    fn the_device_is_the_one_that_the_message_names() {
        let text = "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 1 has a total capacity of \
                    16.00 GiB of which 1.00 MiB is free.";
        let told = OutOfMemory::read(Device::Cuda(0), text).unwrap();
        assert_eq!(told.device, "cuda:1");
        assert!(
            told.to_string()
                .contains("give the stages on cuda:1 fewer layers")
        );
        let text = "CUDA out of memory. Tried to allocate more than 1EB memory.";
        let told = OutOfMemory::read(Device::Cuda(0), text).unwrap();
        assert_eq!(told.device, "cuda:0");
        assert!(told.to_string().contains("give this stage fewer layers"));
    }

    /// Page-locked memory has another allocator with other messages; CUDA's plain sentence was once
    /// taken for a different kind of error.
    #[test]
    fn page_locked_memory_runs_out_in_other_words() {
        let text = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported";
        let sentence = OutOfMemory::read(Device::Cuda(1), text)
            .unwrap()
            .to_string();
        assert!(
            sentence.starts_with("cuda:1 or page-locked memory of the host is out of memory ("),
            "{sentence}"
        );
    }

    #[test]
    fn other_messages_are_left_alone() {
        assert_eq!(OutOfMemory::read(Device::Cpu, "shapes differ"), None);
        let error = OutOfMemory::explain(Device::Cpu, anyhow::anyhow!("shapes differ"));
        assert_eq!(error.to_string(), "shapes differ");
    }

    #[test]
    fn quantities_without_numbers_are_none() {
        assert_eq!(quantity("20.00 MiB. GPU"), Some(Bytes(20 << 20)));
        assert_eq!(quantity("512 bytes. Error"), Some(Bytes(512)));
        assert_eq!(quantity("many bytes"), None);
        assert_eq!(before("nothing here", " is free"), None);
    }
}
