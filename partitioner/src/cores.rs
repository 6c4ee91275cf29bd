//! Cores that devices share, where they are threads of one CPU.

use crate::machine::MachineError;

/// The cores that all devices of a machine share: devices are CPU stages, and there may
/// be more of them than the cores can run at once.
///
/// The operating system then gives each that works an equal part of the cores. A machine
/// without it has a processor for every device.
///
/// # Examples
/// ```
/// use gpipe_partitioner::Cores;
///
/// let cores = Cores::new(2, 1)?;
/// assert_eq!(cores.share(1), 1.0);
/// assert_eq!(cores.share(4), 0.5);
/// # Ok::<(), gpipe_partitioner::MachineError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    cores: usize,
    threads: usize,
}

impl Cores {
    /// `cores` cores, and devices that compute with `threads` threads each.
    ///
    /// # Errors
    /// One of them is 0.
    pub const fn new(cores: usize, threads: usize) -> Result<Self, MachineError> {
        if cores == 0 || threads == 0 {
            return Err(MachineError::Cores { cores, threads });
        }
        Ok(Self { cores, threads })
    }

    /// How many cores there are.
    pub const fn cores(self) -> usize {
        self.cores
    }

    /// How fast each of `working` devices is that work at the same time, relative to one
    /// that works alone.
    pub fn share(self, working: usize) -> f64 {
        let wanted = self.threads.saturating_mul(working).max(1);
        (self.cores as f64 / wanted as f64).min(1.0)
    }

    /// Whether `devices` devices never wait for each other's cores.
    pub const fn suffice(self, devices: usize) -> bool {
        self.threads.saturating_mul(devices) <= self.cores || devices <= 1
    }
}
