//! Numbering of the devices of a pipeline's replicas.

use gpipe_partitioner::DeviceId;

/// The devices of d replicas of a pipeline of p devices, with the replica as the fastest index:
/// device s of replica r has the number s·d + r, so the copies of a stage are neighbours.
///
/// ```text
///               replica 0   replica 1
/// device s = 0      0           1
/// device s = 1      2           3          p = 3, d = 2
/// device s = 2      4           5
/// ```
///
/// # Examples
/// ```
/// use gpipe_engine::Mesh;
/// use gpipe_partitioner::DeviceId;
///
/// let mesh = Mesh::new(3, 2);
/// assert_eq!((mesh.devices(), mesh.device(DeviceId(2), 1)), (6, DeviceId(5)));
/// assert_eq!((mesh.of_pipeline(DeviceId(5)), mesh.replica_of(DeviceId(5))), (DeviceId(2), 1));
/// // One pipeline: the numbers are those of its schedule.
/// assert_eq!(Mesh::from(3), Mesh::new(3, 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "DeviceMesh")]
#[doc(alias = "data parallel size")]
pub struct Mesh {
    pipeline: usize,
    replicas: usize,
}

impl Mesh {
    /// Mesh of `replicas` replicas (0 counts as 1) of a pipeline of `pipeline` devices.
    pub const fn new(pipeline: usize, replicas: usize) -> Self {
        let replicas = if replicas == 0 { 1 } else { replicas };
        Self { pipeline, replicas }
    }

    /// p·d: devices of all replicas.
    pub const fn devices(self) -> usize {
        self.pipeline * self.replicas
    }

    /// p: devices of one replica.
    pub const fn pipeline(self) -> usize {
        self.pipeline
    }

    /// d, at least 1.
    pub const fn replicas(self) -> usize {
        self.replicas
    }

    /// The device in `replica` that corresponds to `of_pipeline` of the schedule.
    pub const fn device(self, of_pipeline: DeviceId, replica: usize) -> DeviceId {
        DeviceId(of_pipeline.0 * self.replicas + replica)
    }

    /// The replica that `device` belongs to.
    pub const fn replica_of(self, device: DeviceId) -> usize {
        device.0 % self.replicas
    }

    /// The number of `device` in the schedule of its replica.
    pub const fn of_pipeline(self, device: DeviceId) -> DeviceId {
        DeviceId(device.0 / self.replicas)
    }

    /// The replica that `device` belongs to, where there are several.
    pub(super) fn named_replica(self, device: DeviceId) -> Option<usize> {
        (self.replicas > 1).then(|| self.replica_of(device))
    }
}

impl From<usize> for Mesh {
    /// Mesh of one pipeline of `pipeline` devices.
    fn from(pipeline: usize) -> Self {
        Self::new(pipeline, 1)
    }
}
