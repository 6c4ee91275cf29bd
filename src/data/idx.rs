//! IDX files, the format of MNIST.

use std::fmt;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tch::{Device, Kind, Tensor};

use super::magic::{self, Magic};
use super::{DataError, Gathered, Place, Source, room};
use gpipe_partitioner::files;
use gpipe_torch::TorchError;
use gpipe_torch::memory::room_on;

/// A larger array...
pub(super) const LARGE: u64 = 64 << 20;
/// ...is rejected if it decompresses by more than this factor.
pub(super) const DENSE: u64 = 200;

/// An array in an IDX file, plain or gzip-compressed, held in memory; its items are its slices along
/// the first dimension, as tensors.
///
/// Images are `u8` tensors of `[rows, columns]`, labels `u8` tensors without dimensions.
pub struct Idx {
    path: PathBuf,
    kind: Kind,
    shape: Vec<i64>,
    /// Data in native byte order.
    data: Vec<u8>,
}

impl fmt::Debug for Idx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idx")
            .field("path", &self.path)
            .field("kind", &self.kind)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl Idx {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, is not an IDX file, or its length contradicts the header; or it
    /// decompresses to more than the free memory, or to more than 64 MiB and 200 times its compressed
    /// size. Sizes are compared with the header before memory is allocated.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        magic::refuse_other(path, &[Magic::Idx, Magic::Compressed])?;
        let mut file = Bytes::open(path)?;
        let magic: [u8; 4] = file.array("the four bytes that every IDX file begins with")?;
        let [0, 0, code, dimensions] = magic else {
            let what = format!("this is no IDX file: it begins with {magic:02x?}, not with 00 00");
            return Err(DataError::bad(path, 0, what));
        };
        let kind = kind(code).ok_or_else(|| {
            let what = format!("{code:#04x} is none of IDX's types of numbers");
            DataError::bad(path, 2, what)
        })?;
        if dimensions == 0 {
            return Err(DataError::bad(
                path,
                3,
                "an array without dimensions has no items",
            ));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(i64::from(u32::from_be_bytes(file.array("the sizes")?)));
        }
        let sides = [i64::try_from(kind.elt_size_in_bytes()).unwrap_or(1)];
        let product = |product: i64, side: &i64| product.checked_mul(*side);
        let size = shape.iter().chain(&sides).try_fold(1, product);
        let size = size.and_then(|size| usize::try_from(size).ok());
        let size = size.ok_or_else(|| {
            DataError::bad(
                path,
                4,
                format!("an array of {shape:?} is too large for any memory"),
            )
        })?;
        refuse_dense(path, size as u64, file.compressed)?;
        refuse_too_large(path, size as u64, room()).map_err(DataError::Settings)?;
        let mut data = file.exactly(size, &shape)?;
        to_native(&mut data, kind.elt_size_in_bytes());
        Ok(Self {
            path: path.to_owned(),
            kind,
            shape,
            data,
        })
    }

    /// Returns the sizes of the dimensions; the first is the number of items.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Returns the element type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn item_bytes(&self) -> usize {
        self.data.len() / self.len().max(1)
    }
}

/// Bytes of available memory, if the system reports it.
fn room() -> Option<u64> {
    let room = room_on(Device::Cpu).ok();
    room.map(|(free, _)| free.0)
}

/// Rejects files that do not fit into memory: a compressed megabyte may hold a gigabyte, and the system
/// kills programs that use more memory than there is, without a message.
fn refuse_too_large(path: &Path, size: u64, free: Option<u64>) -> Result<(), String> {
    match free {
        Some(free) if size > free => Err(format!(
            "{}: its array has {}, but {} of memory are free: take a smaller one",
            path.display(),
            gpipe_partitioner::Bytes(size),
            gpipe_partitioner::Bytes(free)
        )),
        _ => Ok(()),
    }
}

/// Rejects implausible compression: images and labels compress to a tenth; a file that compresses to a
/// thousandth uses memory that nobody expects from its size.
fn refuse_dense(path: &Path, size: u64, compressed: Option<u64>) -> Result<(), DataError> {
    match compressed {
        Some(there) if size > LARGE && size / DENSE > there => Err(DataError::Settings(format!(
            "{}: its array has {}, {} times as much as the compressed file: decompress it with \
             gunzip if it is to have so much",
            path.display(),
            gpipe_partitioner::Bytes(size),
            size / there.max(1)
        ))),
        _ => Ok(()),
    }
}

fn kind(code: u8) -> Option<Kind> {
    Some(match code {
        0x08 => Kind::Uint8,
        0x09 => Kind::Int8,
        0x0b => Kind::Int16,
        0x0c => Kind::Int,
        0x0d => Kind::Float,
        0x0e => Kind::Double,
        _ => return None,
    })
}

/// Converts from big-endian.
fn to_native(data: &mut [u8], width: usize) {
    if cfg!(target_endian = "little") && width > 1 {
        data.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
}

impl Source for Idx {
    type Item = Tensor;

    fn len(&self) -> usize {
        self.shape[0] as usize
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Tensor, DataError> {
        let bytes = self.item_bytes();
        let item = &self.data[index * bytes..][..bytes];
        let tensor = Tensor::f_from_data_size(item, &self.shape[1..], self.kind);
        tensor.map_err(|error| DataError::Item {
            place: self.place(epoch, index),
            source: TorchError::from(error).into(),
        })
    }

    fn gather(&self, _: u64, indices: &[usize]) -> Option<Gathered> {
        let bytes = self.item_bytes();
        room::rows(indices.len(), &self.shape[1..], self.kind, |place, row| {
            row.copy_from_slice(&self.data[indices[place] * bytes..][..bytes]);
            true
        })
    }

    /// For a compressed file, the offset is in the decompressed data.
    fn place(&self, _: u64, index: usize) -> Place {
        let path = self.path.clone();
        Place::Sample { path, index }
    }

    fn identity(&self) -> String {
        let sum = crc32c::crc32c(&self.data);
        format!("an IDX array of {:?} with checksum {sum:08x}", self.shape)
    }
}

/// A file's decompressed bytes, counted.
struct Bytes<'a> {
    path: &'a Path,
    reader: Box<dyn Read>,
    read: usize,
    /// Size of the file, if it is compressed.
    compressed: Option<u64>,
}

impl<'a> Bytes<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let failed = |source| DataError::read(path, source);
        let open = || files::open(path).map(BufReader::new);
        let mut start = Vec::new();
        let begin = open().map_err(failed)?.take(2).read_to_end(&mut start);
        begin.map_err(failed)?;
        let reader = open().map_err(failed)?;
        let bytes = reader.get_ref().metadata().map_err(failed)?.len();
        let (reader, compressed): (Box<dyn Read>, _) = if start == [0x1f, 0x8b] {
            (Box::new(MultiGzDecoder::new(reader)), Some(bytes))
        } else {
            (Box::new(reader), None)
        };
        Ok(Self {
            path,
            reader,
            read: 0,
            compressed,
        })
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], DataError> {
        let bytes = self.at_most(N)?;
        bytes.try_into().map_err(|_| {
            let what = format!("the file ends inside of {what}");
            DataError::bad(self.path, self.read as u64, what)
        })
    }

    fn exactly(&mut self, size: usize, shape: &[i64]) -> Result<Vec<u8>, DataError> {
        let data = self.at_most(size)?;
        let more = self.at_most(1)?.len();
        if data.len() == size && more == 0 {
            return Ok(data);
        }
        let what = if more > 0 {
            format!("the file goes on after the {size} bytes of an array of {shape:?}")
        } else {
            let there = data.len();
            format!(
                "the file ends after {there} of the {size} bytes of an array of {shape:?}: was it copied whole?"
            )
        };
        Err(DataError::bad(self.path, (self.read - more) as u64, what))
    }

    fn at_most(&mut self, size: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(size as u64).read_to_end(&mut bytes);
        self.read += bytes.len();
        match read {
            Ok(_) => Ok(bytes),
            Err(error) if is_damage(&error) => {
                let what = format!("the compressed data is damaged or ends here: {error}");
                Err(DataError::bad(self.path, self.read as u64, what))
            }
            Err(error) => Err(DataError::read(self.path, error)),
        }
    }
}

/// Whether an error is due to damaged data rather than to reading.
fn is_damage(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_that_no_memory_holds_is_refused_before_it_is_read() {
        let refused = |size, free| refuse_too_large(Path::new("x.gz"), size, free);
        assert_eq!(refused(1 << 20, Some(1 << 20)), Ok(()));
        assert_eq!(refused(1 << 40, None), Ok(()));
        assert_eq!(
            refused(3 << 20, Some(2 << 20)).unwrap_err(),
            "x.gz: its array has 3.0 MiB, but 2.0 MiB of memory are free: take a smaller one"
        );
    }
}
