//! Link between a device and the host's memory.

use std::fmt;
use std::str::FromStr;

use super::{Link, OffloadTimes};
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
