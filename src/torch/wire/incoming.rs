//! Decoding of bytes to values, in host memory or in that of a GPU.

use tch::{Device, Kind, Tensor};

use super::header::{Header, Layout, MemoryHeader, ValueHeader, WireError, number};
use super::tensors::{ValueError, sent};
use crate::ffi;
use crate::values::Values;

/// Values that are being received.
#[derive(Debug)]
pub(crate) struct Incoming {
    header: Header,
    /// Received bytes of each memory.
    buffers: Vec<Tensor>,
    /// Memories received in separate messages.
    packs: Vec<Pack>,
}

/// A message that is received.
#[derive(Debug)]
struct Pack {
    /// The memories that it has.
    members: Vec<usize>,
    /// Buffer of its only memory, or one to be copied from.
    bytes: Tensor,
}

impl Incoming {
    /// Takes the memory for values of which this is the header, in the current stream of this GPU
    /// where they go from GPU to GPU.
    pub(crate) fn new(header: Header, gpu: Option<usize>) -> Result<Self, ValueError> {
        let place = |memory: &MemoryHeader| match (memory.by_gpu, gpu) {
            (false, _) => Ok(Device::Cpu),
            (true, Some(gpu)) => Ok(Device::Cuda(gpu)),
            (true, None) => {
                let why = "it goes from GPU to GPU, and nothing connects these";
                Err(WireError(why.to_owned()))
            }
        };
        let buffers = header.memories.iter();
        let buffers = buffers.map(|memory| buffer(memory, place(memory)?));
        Ok(Self {
            buffers: buffers.collect::<Result<_, _>>()?,
            packs: Vec::new(),
            header,
        })
    }

    /// Returns the buffers of the messages after the header, if it has no data in its own message,
    /// in order: one-dimensional byte tensors.
    pub(crate) fn messages(&mut self) -> Result<Vec<Tensor>, ValueError> {
        let pack = |members: Vec<usize>| {
            let bytes = if let [one] = members[..] {
                self.buffers[one].shallow_clone()
            } else {
                let bytes: usize = members.iter().map(|one| self.buffers[*one].numel()).sum();
                Tensor::f_empty([bytes as i64], (Kind::Uint8, Device::Cpu))?
            };
            Ok(Pack { members, bytes })
        };
        let packs = self.header.packs().into_iter().map(pack);
        self.packs = packs.collect::<Result<_, ValueError>>()?;
        let packs = self.packs.iter();
        Ok(packs.map(|pack| pack.bytes.shallow_clone()).collect())
    }

    /// Takes the data after the header in its message.
    pub(crate) fn fill(&self, message: &Tensor, begin: usize) -> Result<(), ValueError> {
        let all = (0..self.buffers.len()).filter(|one| self.buffers[*one].numel() > 0);
        self.unpack(message, begin, all)
    }

    /// Copies the data of a message to the memories that it contains.
    fn unpack(
        &self,
        message: &Tensor,
        mut begin: usize,
        members: impl Iterator<Item = usize>,
    ) -> Result<(), ValueError> {
        for one in members {
            let into = &self.buffers[one];
            if begin + into.numel() > message.numel() {
                let why = "its message is shorter than its header says";
                return Err(WireError(why.to_owned()).into());
            }
            ffi::copy_bytes(message, begin, into)?;
            begin += into.numel();
        }
        Ok(())
    }

    /// Returns the buffers still to be received from a GPU, in order.
    pub(crate) fn gpu_buffers(&self) -> impl Iterator<Item = &Tensor> {
        sent(&self.buffers, true)
    }

    /// Returns the values, once all data has arrived.
    pub(crate) fn values(&self) -> Result<Values, ValueError> {
        let _no_grad = tch::no_grad_guard();
        for pack in self.packs.iter().filter(|pack| pack.members.len() > 1) {
            self.unpack(&pack.bytes, 0, pack.members.iter().copied())?;
        }
        let mut values = Values::new();
        for value in &self.header.values {
            let value = match value {
                // The same tensor, not another one over the same memory.
                Some(ValueHeader {
                    same: Some(same), ..
                }) => values.get(*same).map(Tensor::shallow_clone),
                Some(value) => Some(self.value(value)?),
                None => None,
            };
            values.push(value);
        }
        Ok(values)
    }

    fn value(&self, value: &ValueHeader) -> Result<Tensor, ValueError> {
        let (memory, buffer) = (
            &self.header.memories[value.memory],
            &self.buffers[value.memory],
        );
        let tensor = match memory.layout {
            Layout::Whole => view(buffer, value)?,
            Layout::Elements => {
                let span = MemoryHeader {
                    bytes: self.header.span(value.memory),
                    ..*memory
                };
                let mut spread = view(&self::buffer(&span, buffer.device())?, value)?;
                let elements = buffer.f_view_dtype(value.kind)?;
                spread.f_copy_(&elements.f_view(&*value.sizes)?)?;
                spread
            }
        };
        Ok(tensor.f_set_requires_grad(value.requires_grad)?)
    }
}

/// Allocates memory with an alignment like the sender's.
fn buffer(memory: &MemoryHeader, device: Device) -> Result<Tensor, ValueError> {
    let misalignment = i64::from(memory.misalignment);
    // Checked values are below 2^63.
    let bytes = memory.bytes as i64;
    let all = Tensor::f_empty([bytes + misalignment], (Kind::Uint8, device))?;
    if misalignment == 0 {
        return Ok(all);
    }
    Ok(all.f_narrow(0, misalignment, bytes)?)
}

/// A value in this memory.
fn view(memory: &Tensor, value: &ValueHeader) -> Result<Tensor, ValueError> {
    let Some(end) = value.end().filter(|end| *end > 0) else {
        let none = Tensor::f_empty([0], (value.kind, memory.device()))?;
        return Ok(none.f_as_strided(&*value.sizes, &*value.strides, None)?);
    };
    if end > memory.numel() as u64 {
        return Err(WireError("a tensor is not where its memory is".to_owned()).into());
    }
    let begin = value.offset as i64;
    let Some(kind) = number(value.kind) else {
        return Err(WireError(format!("there is no kind {:?}", value.kind)).into());
    };
    let view = ffi::tensor_over(memory, begin, kind, &value.sizes, &value.strides);
    Ok(view?)
}
