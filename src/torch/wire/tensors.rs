//! Encoding of values as bytes, in host memory, or on a GPU connected to the receiver's.

use tch::{Device, Kind, Tensor};

use super::header::{ALIGNMENT, FIRST, Header, Layout, MemoryHeader, ValueHeader, WireError, item};
use crate::error::TorchError;
use crate::ffi::{self, TensorBytes};
use crate::values::Values;

/// Values that can be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    header: Header,
    written: Vec<u8>,
    /// The memories of the values, as bytes, where they are; empty ones are not sent.
    memories: Vec<Tensor>,
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
    /// Prepares values in host memory, or on this GPU; they must not be written to until they are
    /// sent. Non-contiguous elements on the GPU are copied in its current stream.
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
            written: header.write()?,
            header,
            memories,
        })
    }

    /// Returns the header of the values.
    pub(crate) fn header(&self) -> &[u8] {
        &self.written
    }

    /// Returns the first message, after these bytes of the carrier.
    pub(crate) fn first(&self, before: &[u8]) -> Result<Tensor, ValueError> {
        let header = &self.written[..self.written.len().min(FIRST)];
        let mut first = [before, header].concat();
        if self.header.is_inline() {
            for memory in self.memories() {
                TensorBytes::new(memory)?.append_to(&mut first);
            }
        }
        Ok(Tensor::f_from_slice(&first)?)
    }

    /// Returns the messages after the first one, in order: one-dimensional byte tensors.
    pub(crate) fn rest(&self) -> Result<Vec<Tensor>, ValueError> {
        let mut rest = Vec::new();
        if let Some(header) = self.written.get(FIRST..).filter(|rest| !rest.is_empty()) {
            rest.push(Tensor::f_from_slice(header)?);
        }
        if !self.header.is_inline() {
            rest.extend(self.packs()?);
        }
        Ok(rest)
    }

    /// Returns all messages of host memory, for a carrier that sends the header separately.
    pub(crate) fn packs(&self) -> Result<Vec<Tensor>, ValueError> {
        let packed = |pack: Vec<usize>| {
            if let [one] = pack[..] {
                return Ok(self.memories[one].shallow_clone());
            }
            let parts: Vec<&Tensor> = pack.iter().map(|one| &self.memories[*one]).collect();
            Ok(Tensor::f_cat(&parts, 0)?)
        };
        self.header.packs().into_iter().map(packed).collect()
    }

    /// Returns the values' memories on the host, in order.
    fn memories(&self) -> impl Iterator<Item = &Tensor> {
        sent(&self.memories, false)
    }

    /// Returns the memories sent from GPU to GPU, in order.
    pub(crate) fn gpu_memories(&self) -> impl Iterator<Item = &Tensor> {
        sent(&self.memories, true)
    }
}

/// Selects the memories on a GPU, or those on the host.
pub(super) fn sent(memories: &[Tensor], by_gpu: bool) -> impl Iterator<Item = &Tensor> {
    let there = move |bytes: &&Tensor| (bytes.device() != Device::Cpu) == by_gpu;
    memories
        .iter()
        .filter(|bytes| bytes.numel() > 0)
        .filter(there)
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
    /// Identity of the tensor.
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
        let (identity, _) = ffi::identity(tensor)?;
        Ok(Self {
            kind,
            item,
            identity,
            requires_grad: tensor.requires_grad(),
            address: tensor.data_ptr() as u64,
            tensor: tensor.shallow_clone(),
            sizes,
            strides,
        })
    }

    fn elements(&self) -> u64 {
        self.sizes.iter().map(|size| *size as u64).product()
    }

    /// Returns the bytes from its first element to the end of its last.
    fn span(&self) -> u64 {
        if self.elements() == 0 {
            return 0;
        }
        let dimensions = self.sizes.iter().zip(&self.strides);
        let last: i64 = dimensions.map(|(size, stride)| (size - 1) * stride).sum();
        (last as u64 + 1) * self.item
    }

    /// Returns whether no two of its elements can overlap in memory.
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
    /// Address of the beginning.
    begin: u64,
}

impl Memory {
    /// `None` if there are no values.
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
        // An offset at which no element could begin was never seen as aligned by a kernel.
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

/// libtorch's number of the byte type.
const UINT8: u8 = 0;

/// The bytes of a contiguous tensor with elements, in its own memory.
fn flat(tensor: &Tensor) -> Result<Tensor, ValueError> {
    let bytes = tensor.numel() * tensor.f_kind()?.elt_size_in_bytes();
    Ok(ffi::tensor_over(tensor, 0, UINT8, &[bytes as i64], &[1])?)
}

/// Returns bytes from an address on in the memory of these values, without a copy.
fn whole(sources: &[Source], begin: u64, bytes: u64) -> Result<Tensor, ValueError> {
    let Some(source) = sources.iter().find(|source| source.elements() > 0) else {
        return refused("a memory without a value");
    };
    let before = -((source.address - begin) as i64);
    let flat = ffi::tensor_over(&source.tensor, before, UINT8, &[bytes as i64], &[1]);
    Ok(flat?)
}

#[cfg(test)]
mod tests;
