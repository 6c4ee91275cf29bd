//! Times of moving activations to the host's memory and back.

use super::EdgeTimes;

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
