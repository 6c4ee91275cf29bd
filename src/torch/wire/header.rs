//! Header sent before values: kinds, shapes, strides, and which of them share memory.
//!
//! All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | [`MAGIC`] |
//! | 4 | bytes of the whole header |
//! | 2, 2 | number of memories, number of values |
//! | 10 a memory | bytes that are sent of it (8), how they lie and by which way they come (1), its address modulo 64 (1) |
//! | 1 a value | 0: absent, 1: there, 2: there, and requires a gradient |
//! | 2, 2, 1, 1, 8 a value that is there | its memory, the earlier value that is the same tensor (65535: none), kind, number of dimensions, first byte |
//! | 8, 8 a dimension | size, stride |
//!
//! A header is untrusted input: for any bytes, reading it returns an error or a consistent header.

use tch::Kind;

/// Bytes of the first message of a value at most: of longer headers a second one has the rest.
pub(crate) const FIRST: usize = 4352;

/// Stands for "no value".
const NONE: u16 = u16::MAX;
const MAGIC: u32 = u32::from_le_bytes(*b"gpv1");
/// Longest header, in bytes.
const LONGEST: usize = 1 << 20;
/// More than libtorch's operators take.
const MOST_DIMENSIONS: usize = 64;
/// Alignment of memories in bytes, except for offsets given in the header.
pub(super) const ALIGNMENT: u64 = 64;

/// A kind's number, which is that of libtorch's `ScalarType`, and bytes of an element.
const KINDS: [(Kind, u8, u64); 13] = [
    (Kind::Uint8, 0, 1),
    (Kind::Int8, 1, 1),
    (Kind::Int16, 2, 2),
    (Kind::Int, 3, 4),
    (Kind::Int64, 4, 8),
    (Kind::Half, 5, 2),
    (Kind::Float, 6, 4),
    (Kind::Double, 7, 8),
    (Kind::ComplexHalf, 8, 4),
    (Kind::ComplexFloat, 9, 8),
    (Kind::ComplexDouble, 10, 16),
    (Kind::Bool, 11, 1),
    (Kind::BFloat16, 15, 2),
];

/// Error of an invalid header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value from another process: {0}")]
pub(crate) struct WireError(pub(super) String);

fn wrong<T>(what: impl Into<String>) -> Result<T, WireError> {
    Err(WireError(what.into()))
}

/// Order in which the bytes of a memory are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Whole memory, from the first byte that a value uses to the last.
    Whole,
    /// The elements of its only value, in the order of their indices.
    Elements,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryHeader {
    /// Bytes that are sent.
    pub(super) bytes: u64,
    pub(super) layout: Layout,
    /// Address modulo [`ALIGNMENT`]: kernels may choose by it.
    pub(super) misalignment: u8,
    /// Whether it goes from GPU to GPU, bypassing host memory.
    pub(super) by_gpu: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueHeader {
    /// Index of its memory.
    pub(super) memory: usize,
    /// The first value that is the same tensor, if it comes before this one.
    pub(super) same: Option<usize>,
    pub(super) kind: Kind,
    pub(super) requires_grad: bool,
    /// Bytes from the begin of the memory to its first element.
    pub(super) offset: u64,
    pub(super) sizes: Vec<i64>,
    pub(super) strides: Vec<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(super) memories: Vec<MemoryHeader>,
    /// `None` for an absent value.
    pub(super) values: Vec<Option<ValueHeader>>,
}

/// The number of a kind that can be sent.
pub(super) fn number(kind: Kind) -> Option<u8> {
    let found = KINDS.iter().find(|(own, _, _)| *own == kind);
    found.map(|(_, number, _)| *number)
}

/// Bytes of an element, for a kind that can be sent.
pub(super) fn item(kind: Kind) -> Option<u64> {
    let found = KINDS.iter().find(|(own, _, _)| *own == kind);
    found.map(|(_, _, bytes)| *bytes)
}

impl ValueHeader {
    /// Number of elements; none where that is beyond all numbers.
    fn elements(&self) -> Option<u64> {
        let sizes = self.sizes.iter();
        sizes.map(|size| *size as u64).try_fold(1, u64::checked_mul)
    }

    /// Returns the bytes from the beginning of its memory to the end of its last element; `None` on
    /// overflow.
    pub(super) fn end(&self) -> Option<u64> {
        if self.elements()? == 0 {
            return Some(0);
        }
        let mut last = 0_u64;
        for (size, stride) in self.sizes.iter().zip(&self.strides) {
            last = last.checked_add((*size as u64 - 1).checked_mul(*stride as u64)?)?;
        }
        let item = item(self.kind)?;
        let bytes = last.checked_add(1)?.checked_mul(item)?;
        self.offset.checked_add(bytes)
    }

    fn bytes(&self) -> Option<u64> {
        self.elements()?.checked_mul(item(self.kind)?)
    }
}

impl Header {
    /// Bytes of each memory as its values see it, in which they are spread where only their
    /// elements are sent.
    pub(super) fn span(&self, memory: usize) -> u64 {
        match self.memories[memory].layout {
            Layout::Whole => self.memories[memory].bytes,
            Layout::Elements => {
                let mut own = self.values.iter().flatten();
                let own = own.find(|value| value.memory == memory);
                own.and_then(ValueHeader::end).unwrap_or(0)
            }
        }
    }

    /// Bytes of the header.
    pub(super) fn written(&self) -> usize {
        let value = |value: &Option<ValueHeader>| match value {
            Some(value) => 15 + 16 * value.sizes.len(),
            None => 1,
        };
        12 + 10 * self.memories.len() + self.values.iter().map(value).sum::<usize>()
    }

    /// The header as bytes.
    pub(super) fn write(&self) -> Result<Vec<u8>, WireError> {
        let (Ok(memories), Ok(values)) = (
            u16::try_from(self.memories.len()),
            u16::try_from(self.values.len()),
        ) else {
            return wrong(format!("{} values are too many", self.values.len()));
        };
        let mut bytes = Vec::with_capacity(self.written());
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(memories.to_le_bytes());
        bytes.extend(values.to_le_bytes());
        for memory in &self.memories {
            bytes.extend(memory.bytes.to_le_bytes());
            let layout = u8::from(memory.layout == Layout::Elements);
            bytes.push(layout + 2 * u8::from(memory.by_gpu));
            bytes.push(memory.misalignment);
        }
        for value in &self.values {
            write_value(value.as_ref(), &mut bytes)?;
        }
        if bytes.len() > LONGEST {
            return wrong(format!("{} values are too many", self.values.len()));
        }
        let length = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        Ok(bytes)
    }

    /// Bytes of the header of which this is the first message.
    pub(crate) fn length(first: &[u8]) -> Result<usize, WireError> {
        let mut reader = Reader(first);
        if reader.u32()? != MAGIC {
            return wrong("its header does not begin as one");
        }
        let length = reader.u32()? as usize;
        if length > LONGEST {
            return wrong(format!("its header has {length} bytes"));
        }
        Ok(length)
    }

    /// Reads a header. No memory has more bytes than `limit`.
    pub(crate) fn read(bytes: &[u8], limit: u64) -> Result<Self, WireError> {
        let length = Self::length(bytes)?;
        let Some(bytes) = bytes.get(8..length) else {
            return wrong("its header is cut off");
        };
        let mut reader = Reader(bytes);
        let (memories, values) = (reader.u16()?, reader.u16()?);
        let memories = (0..memories).map(|_| reader.memory());
        let memories = memories.collect::<Result<_, _>>()?;
        let values = (0..values).map(|_| reader.value());
        let values = values.collect::<Result<_, _>>()?;
        if !reader.0.is_empty() {
            return wrong("its header is longer than what it says");
        }
        let header = Self { memories, values };
        header.check(limit)?;
        Ok(header)
    }

    fn check(&self, limit: u64) -> Result<(), WireError> {
        let mut users = vec![0_usize; self.memories.len()];
        for (index, value) in self.values.iter().enumerate() {
            let Some(value) = value else { continue };
            if let Some(same) = value.same {
                let first = self.values.get(same).and_then(Option::as_ref);
                let own = ValueHeader {
                    same: None,
                    ..value.clone()
                };
                if same >= index || first != Some(&own) {
                    return wrong("two values that are said to be the same tensor differ");
                }
            }
            let Some(memory) = self.memories.get(value.memory) else {
                return wrong(format!("memory {} is not there", value.memory));
            };
            users[value.memory] += 1;
            let within = match memory.layout {
                Layout::Whole => value.end().is_some_and(|end| end <= memory.bytes),
                Layout::Elements => value.bytes() == Some(memory.bytes),
            };
            let placed = item(value.kind).is_some_and(|item| {
                value.offset % item == 0 && u64::from(memory.misalignment) % item == 0
            });
            if !within || !placed {
                return wrong("a tensor is not where its memory is");
            }
            if value.end().is_none_or(|end| end > limit) {
                return wrong(format!("a tensor has more than {limit} bytes"));
            }
        }
        for (memory, users) in self.memories.iter().zip(&users) {
            let alone = memory.layout == Layout::Whole || *users == 1;
            if !alone || *users == 0 || memory.bytes > limit {
                return wrong(format!(
                    "a memory of {} bytes is used by {users} tensors",
                    memory.bytes
                ));
            }
            if u64::from(memory.misalignment) >= ALIGNMENT {
                return wrong("a memory's address is wrong");
            }
        }
        Ok(())
    }
}

fn write_value(value: Option<&ValueHeader>, bytes: &mut Vec<u8>) -> Result<(), WireError> {
    let Some(value) = value else {
        bytes.push(0);
        return Ok(());
    };
    let Some(kind) = number(value.kind) else {
        return wrong(format!("{:?} is not a kind that can be sent", value.kind));
    };
    if value.sizes.len() > MOST_DIMENSIONS {
        return wrong(format!("{} dimensions are too many", value.sizes.len()));
    }
    bytes.push(if value.requires_grad { 2 } else { 1 });
    // There are no more memories than values, whose number is limited.
    bytes.extend((value.memory as u16).to_le_bytes());
    bytes.extend(value.same.map_or(NONE, |same| same as u16).to_le_bytes());
    bytes.push(kind);
    bytes.push(value.sizes.len() as u8);
    bytes.extend(value.offset.to_le_bytes());
    for (size, stride) in value.sizes.iter().zip(&value.strides) {
        bytes.extend(size.to_le_bytes());
        bytes.extend(stride.to_le_bytes());
    }
    Ok(())
}

/// Rest of the input.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        match self.0.split_first_chunk() {
            Some((first, rest)) => {
                self.0 = rest;
                Ok(*first)
            }
            None => wrong("its header is cut off"),
        }
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.take().map(u64::from_le_bytes)
    }

    /// A size or stride: not negative.
    fn extent(&mut self) -> Result<i64, WireError> {
        let number = self.u64()?;
        i64::try_from(number).or_else(|_| wrong("a size or stride is negative"))
    }

    fn memory(&mut self) -> Result<MemoryHeader, WireError> {
        let bytes = self.u64()?;
        let way = self.u8()?;
        let layout = match way % 2 {
            _ if way > 3 => return wrong(format!("memory is sent in way {way}")),
            0 => Layout::Whole,
            _ => Layout::Elements,
        };
        Ok(MemoryHeader {
            bytes,
            layout,
            misalignment: self.u8()?,
            by_gpu: way >= 2,
        })
    }

    fn value(&mut self) -> Result<Option<ValueHeader>, WireError> {
        let requires_grad = match self.u8()? {
            0 => return Ok(None),
            1 => false,
            2 => true,
            other => return wrong(format!("a value is there in way {other}")),
        };
        let memory = usize::from(self.u16()?);
        let same = Some(self.u16()?).filter(|same| *same != NONE);
        let number = self.u8()?;
        let Some((kind, _, _)) = KINDS.iter().find(|(_, own, _)| *own == number) else {
            return wrong(format!("there is no kind {number}"));
        };
        let dimensions = usize::from(self.u8()?);
        if dimensions > MOST_DIMENSIONS {
            return wrong(format!("{dimensions} dimensions are too many"));
        }
        let offset = self.u64()?;
        let (mut sizes, mut strides) = (Vec::new(), Vec::new());
        for _ in 0..dimensions {
            sizes.push(self.extent()?);
            strides.push(self.extent()?);
        }
        Ok(Some(ValueHeader {
            memory,
            same: same.map(usize::from),
            kind: *kind,
            requires_grad,
            offset,
            sizes,
            strides,
        }))
    }
}

#[cfg(test)]
mod tests;
