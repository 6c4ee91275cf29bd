//! Cores shared by devices that are threads of one CPU.

/// The cores that all devices of a machine share: devices are CPU stages, and there may be more of
/// them than the cores can run at once.
///
/// They then take turns: as many run as have cores, each keeps its cores until its action is done,
/// and the most urgent go first ([`urgencies`](crate::urgencies)). A machine without shared cores
/// has a processor for every device.
///
/// # Examples
/// ```
/// use gpipe_partitioner::Cores;
///
/// assert_eq!(Cores::new(8, 3)?.at_once(), 2);
/// assert_eq!(Cores::new(2, 4)?.at_once(), 1);
/// # Ok::<(), gpipe_partitioner::CoresError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    cores: usize,
    threads: usize,
}

/// Zero cores, or devices with zero threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cores} cores and {threads} threads a device: there must be at least one of each")]
#[non_exhaustive]
pub struct CoresError {
    /// Number of cores.
    pub cores: usize,
    /// Threads per device.
    pub threads: usize,
}

impl Cores {
    /// `cores` cores, and devices that compute with `threads` threads each.
    ///
    /// # Errors
    /// One of them is 0.
    pub const fn new(cores: usize, threads: usize) -> Result<Self, CoresError> {
        if cores == 0 || threads == 0 {
            return Err(CoresError { cores, threads });
        }
        Ok(Self { cores, threads })
    }

    /// Number of cores.
    pub const fn cores(self) -> usize {
        self.cores
    }

    /// Number of devices that can run at the same time without waiting for each other's cores; at
    /// least one.
    pub const fn at_once(self) -> usize {
        match self.cores / self.threads {
            0 => 1,
            several => several,
        }
    }

    /// Whether `devices` devices never wait for each other's cores.
    pub const fn suffice(self, devices: usize) -> bool {
        devices <= self.at_once()
    }
}
