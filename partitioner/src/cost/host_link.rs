//! Link between a device and the host's memory.

use std::fmt;
use std::str::FromStr;

use super::{EdgeTimes, Link};
use crate::units::Bytes;
use crate::value_error::ValueError;

/// The links between a device and page-locked memory of the host, one each way.
///
/// ```
/// use gpipe_partitioner::{Bytes, HostLink};
/// let link: HostLink = "25GB/s,10us".parse()?;
/// let times = link.transfer(Bytes(50_000_000), 1);
/// assert_eq!(times.to_host.occupancy.get(), 2000.0);
/// assert_eq!(times.to_host, times.to_device);
/// # Ok::<(), gpipe_partitioner::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "PCIe")]
#[doc(alias = "pinned")]
pub struct HostLink {
    /// Device to host (D2H).
    pub to_host: Link,
    /// Host to device (H2D).
    pub to_device: Link,
}

/// Transfer times of the activations of one micro-batch of a stage between device and host. Each
/// device has a link to the host and one back, which its stages share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "D2H")]
#[doc(alias = "H2D")]
pub struct OffloadTimes {
    /// To the host (D2H), from the forward on.
    pub to_host: EdgeTimes,
    /// Back to the device (H2D), before the backward.
    pub to_device: EdgeTimes,
    /// Number of equal parts in which they leave, each as soon as its part of the forward is over:
    /// the stage's layers. 0 counts as 1.
    pub pieces: u32,
}

impl HostLink {
    /// Times of `bytes` there and back, sent in `pieces` parts.
    pub fn transfer(&self, bytes: Bytes, pieces: u32) -> OffloadTimes {
        OffloadTimes {
            to_host: self.to_host.transfer(bytes),
            to_device: self.to_device.transfer(bytes),
            pieces,
        }
    }
}

impl FromStr for HostLink {
    type Err = ValueError;

    /// Reads `25GB/s,10us` for both ways.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let link: Link = text.parse()?;
        Ok(Self {
            to_host: link,
            to_device: link,
        })
    }
}

impl fmt::Display for HostLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.to_host == self.to_device {
            return write!(f, "{}", self.to_host);
        }
        write!(f, "{} there, {} back", self.to_host, self.to_device)
    }
}
