//! Parquet files, read one row group at a time.

use std::io::{self, Cursor};
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::reader::{ChunkReader, Length};

use super::pages::told;
use super::unit::{ROWS, Unit, damage, refuse_dense};
use crate::disk_file::DiskFile;
use crate::{DataError, Phase};
use gpipe_torch::caught;

/// Magic bytes at both ends of a Parquet file.
pub(super) const MAGIC: &[u8] = b"PAR1";
/// Upper bound of bytes per value of variable length in memory: a string view.
const VALUE: u64 = 16;

#[derive(Debug)]
pub(super) struct Parquet {
    file: DiskFile,
    metadata: ArrowReaderMetadata,
    /// Checksum of the footer: offsets, sizes and statistics of all columns.
    pub(super) sum: u32,
}

impl Parquet {
    /// Reads the footer of a file.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(super) fn open(file: DiskFile) -> Result<Self, DataError> {
        let footer = footer(&file)?;
        let sum = crc32c::crc32c(&footer);
        let metadata = caught(|| Ok(metadata(&footer)?));
        let metadata = metadata.map_err(|error| damaged(file.path(), &error))?;
        Ok(Self {
            file,
            metadata,
            sum,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    /// Rows per group.
    pub(super) fn rows(&self) -> Vec<i64> {
        let groups = self.metadata.metadata().row_groups();
        groups.iter().map(|group| group.num_rows()).collect()
    }

    /// Decodes some columns of a group.
    ///
    /// # Errors
    /// The file cannot be read, or the group is damaged.
    pub(super) fn read(
        &self,
        group: usize,
        columns: &[usize],
    ) -> Result<Result<Unit, String>, DataError> {
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), columns.iter().copied());
        let (chunks, there, becomes) = match self.chunks(group, &mask)? {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        if let Err(why) = refuse_dense(there, becomes) {
            return Ok(Err(why));
        }
        let decoded = Phase::Decode.during(|| caught(|| Ok(self.decode(group, mask, chunks)?)));
        Ok(decoded
            .map(|batches| Unit {
                batches: batches.into_iter().map(Arc::new).collect(),
                each: ROWS,
                bytes: becomes,
            })
            .map_err(|error| damage(&error)))
    }

    /// Returns the bytes of a group's columns, their total size, and their decompressed size.
    #[allow(clippy::type_complexity, reason = "one place needs it")]
    fn chunks(
        &self,
        group: usize,
        mask: &ProjectionMask,
    ) -> Result<Result<(Chunks, u64, u64), String>, DataError> {
        let columns = self.metadata.metadata().row_group(group).columns();
        let (mut chunks, mut there, mut becomes) = (Vec::new(), 0_u64, 0_u64);
        for (leaf, column) in columns.iter().enumerate() {
            if !mask.leaf_included(leaf) {
                continue;
            }
            let name = column.column_path().string();
            let start = column.dictionary_page_offset();
            let start = u64::try_from(start.unwrap_or(column.data_page_offset()));
            let bytes = u64::try_from(column.compressed_size());
            let range = start.ok().zip(bytes.ok()).filter(|(start, bytes)| {
                start
                    .checked_add(*bytes)
                    .is_some_and(|end| end <= self.file.len())
            });
            let Some((start, bytes)) = range else {
                let what = format!("column `{name}` is said to be outside of the file");
                return Ok(Err(what));
            };
            let mut chunk = vec![0; bytes as usize];
            self.file.read(&mut chunk, start)?;
            let Some(told) = told(&chunk) else {
                return Ok(Err(format!("the pages of column `{name}` are damaged")));
            };
            let fixed = u64::try_from(column.column_descr().type_length()).unwrap_or(0);
            let values = told.values.saturating_mul(fixed.max(VALUE));
            there += bytes;
            becomes = becomes.saturating_add(told.bytes).saturating_add(values);
            chunks.push((start, bytes::Bytes::from(chunk)));
        }
        let len = self.file.len();
        Ok(Ok((Chunks { chunks, len }, there, becomes)))
    }

    fn decode(
        &self,
        group: usize,
        mask: ProjectionMask,
        chunks: Chunks,
    ) -> ParquetResult<Vec<RecordBatch>> {
        let reader =
            ParquetRecordBatchReaderBuilder::new_with_metadata(chunks, self.metadata.clone())
                .with_row_groups(vec![group])
                .with_projection(mask)
                .with_batch_size(ROWS)
                .build()?;
        let batches: Result<_, ArrowError> = reader.collect();
        Ok(batches?)
    }
}

fn damaged(path: &Path, error: &anyhow::Error) -> DataError {
    DataError::bad_path(
        path,
        format!("this Parquet file is damaged: {}", damage(error)),
    )
}

/// Returns the footer, without its length and the magic bytes.
fn footer(file: &DiskFile) -> Result<Vec<u8>, DataError> {
    let cut = || {
        let what = "the file does not end as a Parquet file does: was it copied whole?";
        DataError::bad(file.path(), file.len(), what)
    };
    let mut end = [0; 8];
    let start = file.len().checked_sub(8).ok_or_else(cut)?;
    file.read(&mut end, start)?;
    let [a, b, c, d, magic @ ..] = end;
    if magic != MAGIC {
        return Err(match &magic {
            b"PARE" => DataError::bad_path(file.path(), "this Parquet file is encrypted"),
            _ => cut(),
        });
    }
    let bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
    let start = start.checked_sub(bytes).ok_or_else(cut)?;
    let mut footer = vec![0; bytes as usize];
    file.read(&mut footer, start)?;
    Ok(footer)
}

/// Reads strings and bytes as views, which do not repeat values that the file has once.
fn metadata(footer: &[u8]) -> ParquetResult<ArrowReaderMetadata> {
    let metadata = Arc::new(ParquetMetaDataReader::decode_metadata(footer)?);
    // The schema that Arrow writers add may have types that take more memory or do not exist.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let plain = ArrowReaderMetadata::try_new(Arc::clone(&metadata), options.clone())?;
    let views = Schema::new(views(plain.schema().fields()));
    ArrowReaderMetadata::try_new(metadata, options.with_schema(Arc::new(views)))
}

fn views(fields: &Fields) -> Fields {
    fields.iter().map(|field| Arc::new(view(field))).collect()
}

fn view(field: &Field) -> Field {
    let of = |inner: &Arc<Field>| Arc::new(view(inner));
    let kind = match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::List(inner) => DataType::List(of(inner)),
        DataType::LargeList(inner) => DataType::LargeList(of(inner)),
        DataType::Struct(inner) => DataType::Struct(views(inner)),
        DataType::Map(inner, sorted) => DataType::Map(of(inner), *sorted),
        other => other.clone(),
    };
    field.clone().with_data_type(kind)
}

/// Bytes of some columns, by their offsets in the file.
struct Chunks {
    chunks: Vec<(u64, bytes::Bytes)>,
    len: u64,
}

impl Chunks {
    /// Returns the bytes from an offset on.
    fn from(&self, start: u64) -> ParquetResult<bytes::Bytes> {
        let own = self.chunks.iter().find_map(|(from, bytes)| {
            let offset = usize::try_from(start.checked_sub(*from)?).ok()?;
            (offset < bytes.len()).then(|| bytes.slice(offset..))
        });
        own.ok_or_else(|| ParquetError::EOF(format!("nothing of these columns is at byte {start}")))
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Chunks {
    type T = Cursor<bytes::Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(Cursor::new(self.from(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<bytes::Bytes> {
        let own = self.from(start)?;
        if length > own.len() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(own.slice(..length))
    }
}
