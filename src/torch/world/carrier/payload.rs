//! Values that a carrier can transport.

use crate::streams::{InTransit, ToHost};
use crate::{TorchError, Values};
use tch::Device;

/// A value that a [`WorldCarrier`](super::WorldCarrier) takes to other processes.
pub trait Payload: Sized + Send + 'static {
    /// Converts to values in host memory.
    ///
    /// # Errors
    /// They cannot be copied to the host.
    fn into_values(self) -> anyhow::Result<Values>;

    /// Converts from received values.
    fn from_values(values: Values) -> Self;

    /// Converts to a parcel without moving the data. A stage's thread calls this, and must not wait
    /// for a device; another thread copies the parcel to host memory if needed. By default it is
    /// copied at once.
    ///
    /// # Errors
    /// It cannot be copied to the host.
    fn into_parcel(self) -> anyhow::Result<Parcel> {
        Ok(Parcel::on_host(self.into_values()?))
    }

    /// Converts from a received parcel, wherever its data is. By default the data is copied to host
    /// memory.
    ///
    /// # Errors
    /// It cannot be copied to the host.
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
        values.into()
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
        Self(values.into())
    }

    fn into_parcel(self) -> anyhow::Result<Parcel> {
        Ok(self)
    }

    fn from_parcel(parcel: Parcel) -> anyhow::Result<Self> {
        Ok(parcel)
    }
}

/// Values in transit, which a device may still be computing: the value type of custom stages that
/// compute on GPUs.
///
/// Work on a GPU is only submitted, so values may be sent before they are computed. A parcel
/// records the point in the sender's stream at which they are, and the receiver's stream waits for
/// that point.
#[derive(Debug)]
#[doc(alias = "CUDA event")]
pub struct Parcel(pub(super) InTransit);

impl Parcel {
    /// Wraps values made on the calling thread's current streams.
    ///
    /// # Errors
    /// A device reports an error.
    pub fn new(values: Values) -> Result<Self, TorchError> {
        let made = InTransit::of_current_stream(values);
        made.map(Self)
    }

    /// Returns the values on a device, ready for the calling thread's current stream there.
    ///
    /// # Errors
    /// A device reports an error.
    pub fn open(self, device: Device) -> Result<Values, TorchError> {
        self.0.open(device)
    }

    pub(super) fn on_host(values: Values) -> Self {
        Self(values.into())
    }
}
