//! Values to bytes, and back: of the host's memory, or of a GPU that the receiver's exchanges
//! memory with.

use tch::{Device, Kind, Tensor};

use super::header::{
    ALIGNMENT, FIRST, Header, INLINE, Layout, MemoryHeader, ValueHeader, WireError, item,
};
use crate::torch::error::TorchError;
use crate::torch::ffi;
use crate::torch::values::Values;

/// Values that can be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// As bytes, [`FIRST`] at least.
    header: Vec<u8>,
    /// The memories of the values, as bytes, where they are; empty ones are not sent.
    memories: Vec<Tensor>,
}

/// Values that are being received.
#[derive(Debug)]
pub(crate) struct Incoming {
    header: Header,
    /// What is received of each memory, as bytes.
    buffers: Vec<Tensor>,
}

/// A value cannot be sent, or what was received is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Torch(#[from] TorchError),
    #[error(transparent)]
    Tch(#[from] tch::TchError),
}

fn refused<T>(what: &str) -> Result<T, ValueError> {
    Err(WireError(format!("{what} cannot be sent")).into())
}

impl Outgoing {
    /// Values in the host's memory, or on this GPU; nobody may write to them until they are sent.
    /// Elements of the GPU's that do not lie together are copied in its current stream.
    pub(crate) fn new(values: &Values, gpu: Option<usize>) -> Result<Self, ValueError> {
        let _no_grad = tch::no_grad_guard();
        let first = ffi::aliases(values.iter())?;
        let first = first.unwrap_or_else(|| (0..values.len()).collect());
        let mut header = Header {
            memories: Vec::new(),
            values: values.iter().map(|_| None).collect(),
        };
        let mut memories = Vec::new();
        for lead in (0..values.len()).filter(|index| first[*index] == *index) {
            let members: Vec<usize> = (lead..values.len()).filter(|i| first[*i] == lead).collect();
            let tensors = members.iter().filter_map(|index| values.get(*index));
            let sources = tensors.map(|tensor| Source::new(tensor, gpu));
            let tensors: Vec<Source> = sources.collect::<Result<_, _>>()?;
            let Some(memory) = Memory::of(&tensors)? else {
                continue;
            };
            for (index, source) in members.iter().zip(&tensors) {
                let mut before = members.iter().zip(&tensors);
                let same = before.find(|(_, other)| other.identity == source.identity);
                let same = same.map(|(other, _)| *other).filter(|other| other < index);
                let own = source.header(header.memories.len(), &memory);
                header.values[*index] = Some(ValueHeader { same, ..own });
            }
            header.memories.push(memory.header);
            memories.push(memory.bytes);
        }
        Ok(Self {
            header: header.write()?,
            memories,
        })
    }

    /// What is said of the values: the first message is its first [`FIRST`] bytes, and the
    /// second the rest, if there is any.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    /// What is sent behind the header, in order: one-dimensional tensors of bytes.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &Tensor> {
        sent(&self.memories, false)
    }

    /// What is sent from GPU to GPU, in order.
    pub(crate) fn gpu_memories(&self) -> impl Iterator<Item = &Tensor> {
        sent(&self.memories, true)
    }
}

/// Those of them that a GPU has, or those that the host has.
fn sent(memories: &[Tensor], by_gpu: bool) -> impl Iterator<Item = &Tensor> {
    let there = move |bytes: &&Tensor| (bytes.device() != Device::Cpu) == by_gpu;
    memories
        .iter()
        .filter(|bytes| bytes.numel() > 0)
        .filter(there)
}

/// Whether the memories of values travel in the same message as their header: they have no more
/// bytes than [`INLINE`], and a message costs more than these.
pub(crate) fn is_inline(header: &[u8]) -> Result<bool, WireError> {
    Ok(header.len() == FIRST && travels_inline(&Header::read(header, u64::MAX)?))
}

fn travels_inline(header: &Header) -> bool {
    let by_host = header.memories.iter().all(|memory| !memory.by_gpu);
    let add = |sum: u64, memory: &MemoryHeader| sum.saturating_add(memory.bytes);
    by_host && header.memories.iter().fold(0, add) <= INLINE as u64
}

/// How many messages behind a header somebody receives ahead who expects it: those of values that
/// all go through the host's memory, and not in the message of their header.
pub(crate) fn received_ahead(header: &[u8]) -> Result<usize, WireError> {
    let inline = header.len() == FIRST;
    let header = Header::read(header, u64::MAX)?;
    if header.memories.iter().any(|memory| memory.by_gpu) || (inline && travels_inline(&header)) {
        return Ok(0);
    }
    let sent = header.memories.iter().filter(|memory| memory.bytes > 0);
    Ok(sent.count())
}

/// A value as its memory has it.
struct Source {
    tensor: Tensor,
    kind: Kind,
    item: u64,
    requires_grad: bool,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    address: u64,
    /// Of its first element, in its storage.
    offset: i64,
    /// Which tensor it is.
    identity: u64,
}

impl Source {
    fn new(tensor: &Tensor, gpu: Option<usize>) -> Result<Self, ValueError> {
        let device = tensor.device();
        let here = device == Device::Cpu || gpu.map(Device::Cuda) == Some(device);
        if tensor.is_sparse() || !here {
            return refused("a value that is sparse, or not in the host's memory,");
        }
        if tensor.f_is_conj()? || tensor.f_is_neg()? {
            return refused("a value that is yet to be conjugated or negated");
        }
        let kind = tensor.f_kind()?;
        let Some(item) = item(kind) else {
            return refused(&format!("a value of kind {kind:?}"));
        };
        let (sizes, strides) = (tensor.size(), tensor.stride());
        if strides.iter().any(|stride| *stride < 0) {
            return refused("a value with a negative stride");
        }
        let (identity, offset) = ffi::identity(tensor)?;
        Ok(Self {
            kind,
            item,
            offset,
            identity,
            requires_grad: tensor.requires_grad(),
            address: tensor.data_ptr() as u64,
            tensor: tensor.f_detach()?,
            sizes,
            strides,
        })
    }

    fn elements(&self) -> u64 {
        self.sizes.iter().map(|size| *size as u64).product()
    }

    /// Bytes from its first element to behind its last.
    fn span(&self) -> u64 {
        if self.elements() == 0 {
            return 0;
        }
        let dimensions = self.sizes.iter().zip(&self.strides);
        let last: i64 = dimensions.map(|(size, stride)| (size - 1) * stride).sum();
        (last as u64 + 1) * self.item
    }

    /// Whether it is certain that no two of its elements are one in memory.
    fn is_apart(&self) -> bool {
        let dimensions = self.sizes.iter().zip(&self.strides);
        let mut dimensions: Vec<_> = dimensions.filter(|(size, _)| **size > 1).collect();
        dimensions.sort_by_key(|(_, stride)| **stride);
        let mut reach = 0;
        dimensions.into_iter().all(|(size, stride)| {
            let apart = *stride > reach;
            reach += (size - 1) * stride;
            apart
        })
    }

    fn header(&self, memory: usize, own: &Memory) -> ValueHeader {
        let empty = self.elements() == 0;
        ValueHeader {
            memory,
            same: None,
            kind: self.kind,
            requires_grad: self.requires_grad,
            offset: if empty { 0 } else { self.address - own.begin },
            sizes: self.sizes.clone(),
            strides: self.strides.clone(),
        }
    }
}

/// The memory of values that share it, or of one value.
struct Memory {
    header: MemoryHeader,
    bytes: Tensor,
    /// Its address.
    begin: u64,
}

impl Memory {
    /// None where there are no values.
    fn of(sources: &[Source]) -> Result<Option<Self>, ValueError> {
        let used = || sources.iter().filter(|source| source.elements() > 0);
        let begin = used().map(|source| source.address).min();
        let end = used().map(|source| source.address + source.span()).max();
        let (Some(begin), Some(end)) = (begin, end) else {
            return sources.first().map(Self::empty).transpose();
        };
        let (layout, bytes) = match sources {
            [one] if one.span() > one.elements() * one.item && one.is_apart() => {
                let elements = one.tensor.f_contiguous()?;
                (Layout::Elements, flat(&elements)?)
            }
            _ => (Layout::Whole, whole(sources, begin, end - begin)?),
        };
        // Where an element could not begin, no kernel was given it as aligned.
        let item = sources.iter().map(|source| source.item).max().unwrap_or(1);
        let misalignment = begin % ALIGNMENT;
        let misalignment = misalignment - misalignment % item;
        Ok(Some(Self {
            header: MemoryHeader {
                bytes: bytes.numel() as u64,
                layout,
                misalignment: misalignment as u8,
                by_gpu: bytes.device() != Device::Cpu,
            },
            bytes,
            begin,
        }))
    }

    fn empty(of: &Source) -> Result<Self, ValueError> {
        let device = of.tensor.device();
        Ok(Self {
            header: MemoryHeader {
                bytes: 0,
                layout: Layout::Whole,
                misalignment: 0,
                by_gpu: device != Device::Cpu,
            },
            bytes: Tensor::f_empty([0], (Kind::Uint8, device))?,
            begin: 0,
        })
    }
}

/// The bytes of a contiguous tensor, in its own memory.
fn flat(tensor: &Tensor) -> Result<Tensor, ValueError> {
    let elements = tensor.numel() as i64;
    let flat = tensor.f_as_strided([elements], [1], None)?;
    Ok(flat.f_view_dtype(Kind::Uint8)?)
}

/// So many bytes from an address on that is in the memory of these values, without a copy.
fn whole(sources: &[Source], begin: u64, bytes: u64) -> Result<Tensor, ValueError> {
    // Of the smallest kind: the begin and the size are multiples of it.
    let smallest = sources.iter().filter(|source| source.elements() > 0);
    let Some(source) = smallest.min_by_key(|source| source.item) else {
        return refused("a memory without a value");
    };
    let before = (source.address - begin) / source.item;
    let elements = [(bytes / source.item) as i64];
    let first = source.offset - before as i64;
    flat(&source.tensor.f_as_strided(elements, [1], first)?)
}

impl Incoming {
    /// Bytes that the first message says the header has.
    pub(crate) fn header_bytes(first: &[u8]) -> Result<usize, WireError> {
        Header::length(first)
    }

    /// Whether some of the values of which this is the header go from GPU to GPU.
    pub(crate) fn is_by_gpu(header: &[u8], limit: u64) -> Result<bool, WireError> {
        let header = Header::read(header, limit)?;
        Ok(header.memories.iter().any(|memory| memory.by_gpu))
    }

    /// Takes the memory for values of which this is the header, in the current stream of this GPU
    /// where they go from GPU to GPU. They have `limit` bytes at most.
    pub(crate) fn new(header: &[u8], limit: u64, gpu: Option<usize>) -> Result<Self, ValueError> {
        let header = Header::read(header, limit)?;
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
            header,
        })
    }

    /// What is still to be received, in order: one-dimensional tensors of bytes.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Tensor> {
        sent(&self.buffers, false)
    }

    /// Takes what has come behind the header, in its message.
    pub(crate) fn fill(&self, inline: &[u8]) -> Result<(), ValueError> {
        let mut rest = inline;
        for buffer in self.buffers() {
            let Some((own, behind)) = rest.split_at_checked(buffer.numel()) else {
                let why = "its message is shorter than its header says";
                return Err(WireError(why.to_owned()).into());
            };
            let own = Tensor::f_from_slice(own)?;
            tch::no_grad(|| buffer.shallow_clone().f_copy_(&own))?;
            rest = behind;
        }
        Ok(())
    }

    /// What is still to be received from a GPU, in order.
    pub(crate) fn gpu_buffers(&self) -> impl Iterator<Item = &Tensor> {
        sent(&self.buffers, true)
    }

    /// The values, once all is there.
    pub(crate) fn values(&self) -> Result<Values, ValueError> {
        let _no_grad = tch::no_grad_guard();
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

/// Memory for so many bytes, at an address like the sender's.
fn buffer(memory: &MemoryHeader, device: Device) -> Result<Tensor, ValueError> {
    let misalignment = i64::from(memory.misalignment);
    // What was checked is below 2^63.
    let bytes = memory.bytes as i64;
    let all = Tensor::f_empty([bytes + misalignment], (Kind::Uint8, device))?;
    Ok(all.f_narrow(0, misalignment, bytes)?)
}

/// A value in this memory.
fn view(memory: &Tensor, value: &ValueHeader) -> Result<Tensor, ValueError> {
    let Some(end) = value.end().filter(|end| *end > 0) else {
        let none = Tensor::f_empty([0], (value.kind, memory.device()))?;
        return Ok(none.f_as_strided(&*value.sizes, &*value.strides, None)?);
    };
    let bytes = memory.f_narrow(0, value.offset as i64, (end - value.offset) as i64)?;
    let typed = bytes.f_view_dtype(value.kind)?;
    let view = typed.f_as_strided(&*value.sizes, &*value.strides, None)?;
    Ok(view.f_detach()?)
}

#[cfg(test)]
mod tests;
