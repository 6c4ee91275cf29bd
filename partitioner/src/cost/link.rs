//! Links between devices.

use super::EdgeTimes;
use crate::units::{Bytes, Micros};
use crate::value_error::ValueError;
use std::fmt;
use std::str::FromStr;

/// A link from one device to another.
///
/// ```
/// use gpipe_partitioner::{Bytes, Link};
/// let link: Link = "25GB/s,5us".parse()?;
/// let times = link.transfer(Bytes(50_000_000));
/// assert_eq!((times.occupancy.get(), times.latency.get()), (2000.0, 5.0));
/// assert!("25GB".parse::<Link>().is_err());
/// # Ok::<(), gpipe_partitioner::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "p2p")]
#[doc(alias = "bandwidth")]
pub struct Link {
    bytes_per_second: f64,
    latency: Micros,
}

impl Link {
    /// Creates a link that moves `bandwidth` per second, with an additional `latency` per value.
    ///
    /// # Errors
    /// [`ValueError::Parse`] when the bandwidth is zero.
    pub fn new(bandwidth: Bytes, latency: Micros) -> Result<Self, ValueError> {
        if bandwidth == Bytes::ZERO {
            return Err(bad("0B/s"));
        }
        Ok(Self {
            bytes_per_second: bandwidth.get() as f64,
            latency,
        })
    }

    /// Creates a link without copies: a value takes `latency`, whatever its size.
    pub const fn without_copy(latency: Micros) -> Self {
        Self {
            bytes_per_second: f64::INFINITY,
            latency,
        }
    }

    /// Bytes per second; `None` if they take no time.
    pub fn bandwidth(&self) -> Option<Bytes> {
        let copied = self.bytes_per_second.is_finite();
        copied.then_some(Bytes(self.bytes_per_second as u64))
    }

    /// Time of a value beyond that of its bytes.
    pub const fn latency(&self) -> Micros {
        self.latency
    }

    /// Times of `bytes`.
    pub fn transfer(&self, bytes: Bytes) -> EdgeTimes {
        EdgeTimes {
            occupancy: Micros::saturating(bytes.get() as f64 / self.bytes_per_second * 1e6),
            latency: self.latency,
        }
    }
}

fn bad(text: &str) -> ValueError {
    ValueError::Parse {
        text: text.chars().take(40).collect(),
        expected: "a link such as 25GB/s,5us (bandwidth per second, then latency)",
    }
}

impl FromStr for Link {
    type Err = ValueError;

    /// Parses `25GB/s,5us`, or `100Gbit/s,5us` as for networks; the latency may be omitted.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (bandwidth, latency) = text.split_once(',').unwrap_or((text, "0us"));
        let bandwidth = bandwidth
            .trim()
            .strip_suffix("/s")
            .ok_or_else(|| bad(text))?;
        let bandwidth = match bandwidth.strip_suffix("bit") {
            // Eight bits a byte.
            Some(number) => format!("{number}B")
                .parse()
                .map(|Bytes(bits)| Bytes(bits / 8)),
            None => bandwidth.parse(),
        };
        let bandwidth = bandwidth.map_err(|_| bad(text))?;
        let latency = latency.parse().map_err(|_| bad(text))?;
        Self::new(bandwidth, latency).map_err(|_| bad(text))
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bandwidth() {
            Some(_) => write!(
                f,
                "{:.1} GB/s, {}",
                self.bytes_per_second / 1e9,
                self.latency
            ),
            None => write!(f, "no copy, {}", self.latency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_link_is_refused() {
        for text in [
            "",
            "25GB/s,",
            "0B/s,5us",
            "x/s",
            "25GB/s,-5us",
            "25GB/s,5us,1",
            "NaN/s",
            "-1GB/s",
            "bit/s",
            "7bit/s",
            "100Gbit,5us",
        ] {
            assert!(text.parse::<Link>().is_err(), "{text}");
        }
    }

    #[test]
    fn networks_are_named_in_bits() {
        let bits: Link = "100Gbit/s,5us".parse().unwrap();
        assert_eq!(bits, "12.5GB/s,5us".parse().unwrap());
        assert_eq!("1 Gbit/s".parse::<Link>(), "125MB/s".parse());
    }

    #[test]
    fn where_nothing_is_copied_only_the_latency_is_left() {
        let latency = Micros::new(7.0).unwrap();
        let link = Link::without_copy(latency);
        let times = link.transfer(Bytes(u64::MAX));
        assert_eq!((times.occupancy, times.latency), (Micros::ZERO, latency));
        assert_eq!((link.bandwidth(), link.latency()), (None, latency));
        assert!(link.to_string().starts_with("no copy, 7"), "{link}");
    }

    #[test]
    fn a_slow_link_saturates() {
        let link: Link = "1B/s".parse().unwrap();
        assert_eq!(link.transfer(Bytes(3)).occupancy.get(), 3e6);
        assert!(link.transfer(Bytes(u64::MAX)).occupancy.get().is_finite());
    }
}
