//! What a carrier takes to other processes.

use crate::tch::Device;
use crate::torch::streams::{Backend, InTransit, ToHost};
use crate::torch::{TorchError, Values};

/// What a [`WorldCarrier`](super::WorldCarrier) takes to other processes.
pub trait Payload: Sized + Send + 'static {
    /// Itself as values in the host's memory.
    ///
    /// # Errors
    /// They cannot be brought there.
    fn into_values(self) -> anyhow::Result<Values>;

    /// What has arrived.
    fn from_values(values: Values) -> Self;

    /// Itself where it is. The thread of a stage calls this, and waits for no device; the parcel
    /// is brought to the host's memory by another thread, where it has to be. By default it is
    /// brought there at once.
    ///
    /// # Errors
    /// It cannot be brought there.
    fn into_parcel(self) -> anyhow::Result<Parcel> {
        Ok(Parcel::on_host(self.into_values()?))
    }

    /// What has arrived, where it is. By default it is brought to the host's memory.
    ///
    /// # Errors
    /// It cannot be brought there.
    fn from_parcel(parcel: Parcel) -> anyhow::Result<Self> {
        Ok(Self::from_values(parcel.into_values()?))
    }
}

impl Payload for Values {
    fn into_values(self) -> anyhow::Result<Values> {
        Ok(self)
    }

    fn from_values(values: Values) -> Self {
        values
    }
}

impl Payload for InTransit {
    fn into_values(self) -> anyhow::Result<Values> {
        Ok(ToHost::default().values(self)?)
    }

    fn from_values(values: Values) -> Self {
        Self::on_host(values)
    }

    fn into_parcel(self) -> anyhow::Result<Parcel> {
        Ok(Parcel(self))
    }

    fn from_parcel(parcel: Parcel) -> anyhow::Result<Self> {
        Ok(parcel.0)
    }
}

impl Payload for Parcel {
    fn into_values(self) -> anyhow::Result<Values> {
        Ok(ToHost::default().values(self.0)?)
    }

    fn from_values(values: Values) -> Self {
        Self::on_host(values)
    }

    fn into_parcel(self) -> anyhow::Result<Parcel> {
        Ok(self)
    }

    fn from_parcel(parcel: Parcel) -> anyhow::Result<Self> {
        Ok(parcel)
    }
}

/// Values on their way, which a device may still be making: the value of stages of one's own that
/// compute on GPUs.
///
/// Work on a GPU is only submitted, so values may be sent before they are there. A parcel knows
/// the point in the sender's stream at which they are, and whoever opens it has its own stream
/// wait for that.
#[derive(Debug)]
#[doc(alias = "CUDA event")]
pub struct Parcel(pub(super) InTransit);

impl Parcel {
    /// Values that the calling thread's current streams make.
    ///
    /// # Errors
    /// A device refuses.
    pub fn new(values: Values) -> Result<Self, TorchError> {
        let made = InTransit::of_current_stream(&Backend::Cuda, values);
        made.map(Self)
    }

    /// The values on a device, for the calling thread's current stream there.
    ///
    /// # Errors
    /// A device refuses.
    pub fn open(self, device: Device) -> Result<Values, TorchError> {
        self.0.open(&Backend::Cuda, device)
    }

    pub(super) fn on_host(values: Values) -> Self {
        Self(InTransit::on_host(values))
    }
}
