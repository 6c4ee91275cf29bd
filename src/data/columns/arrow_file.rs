//! Arrow files and streams, read one record batch at a time.

use std::path::Path;
use std::sync::Arc;

use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, Message, MessageHeader, RecordBatch, root_as_footer, root_as_message};
use arrow_schema::SchemaRef;

use super::unit::{Unit, damage, refuse_dense};
use crate::disk_file::DiskFile;
use crate::{DataError, Phase};
use gpipe_torch::caught;

/// Magic bytes at both ends of an Arrow file.
pub(super) const MAGIC: &[u8] = b"ARROW1";
/// Marker at the beginning of a stream's message.
pub(super) const MESSAGE: &[u8] = &[0xff; 4];
/// Limit of a message's metadata in bytes; anything longer is not a message.
const LONGEST: u64 = 1 << 26;

/// A file or a stream.
#[derive(Debug)]
pub(super) struct Arrow {
    file: DiskFile,
    schema: SchemaRef,
    decoder: FileDecoder,
    blocks: Vec<Block>,
    rows: Vec<i64>,
    /// Checksum of the metadata of all batches.
    pub(super) sum: u32,
}

impl Arrow {
    /// Reads the metadata of all batches, and all dictionaries.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(super) fn open(file: DiskFile, stream: bool) -> Result<Self, DataError> {
        let found = if stream {
            of_stream(&file)?
        } else {
            of_file(&file)?
        };
        let Found {
            schema,
            decoder,
            dictionaries,
            blocks,
        } = found;
        let mut all = Self {
            file,
            schema,
            decoder,
            blocks: Vec::new(),
            rows: Vec::new(),
            sum: 0,
        };
        for block in dictionaries {
            all.dictionary(&block)?;
        }
        for block in blocks {
            all.batch(block)?;
        }
        Ok(all)
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows per batch.
    pub(super) fn rows(&self) -> &[i64] {
        &self.rows
    }

    fn dictionary(&mut self, block: &Block) -> Result<(), DataError> {
        let all = whole(&self.file, block)?;
        let read = caught(|| {
            let message = message(&all)?;
            let header = message.header_as_dictionary_batch();
            let batch = header.and_then(|own| own.data());
            let batch = batch.ok_or_else(|| anyhow::anyhow!("this is no dictionary"))?;
            becomes(batch, &all[block.metaDataLength() as usize..])?;
            Ok(self
                .decoder
                .read_dictionary(block, &Buffer::from_vec(all))?)
        });
        read.map_err(|error| damaged(&self.file, block, &error))
    }

    /// Reads the metadata of a batch.
    fn batch(&mut self, block: Block) -> Result<(), DataError> {
        let metadata = part(&self.file, &block, block.metaDataLength().into())?;
        let rows = caught(|| {
            let message = message(&metadata)?;
            let header = message.header_as_record_batch();
            let batch = header.ok_or_else(|| anyhow::anyhow!("this is no record batch"))?;
            Ok(batch.length())
        });
        let rows = rows.map_err(|error| damaged(&self.file, &block, &error))?;
        self.sum = crc32c::crc32c_append(self.sum, &metadata);
        self.rows.push(rows);
        self.blocks.push(block);
        Ok(())
    }

    /// Decodes some columns of a batch.
    ///
    /// # Errors
    /// The file cannot be read, or the batch is damaged.
    pub(super) fn read(
        &self,
        batch: usize,
        columns: &[usize],
    ) -> Result<Result<Unit, String>, DataError> {
        let block = &self.blocks[batch];
        let all = whole(&self.file, block)?;
        let decoded = Phase::Decode.during(|| caught(|| self.decode(block, all, columns)));
        Ok(decoded.map_err(|error| damage(&error)))
    }

    fn decode(&self, block: &Block, all: Vec<u8>, columns: &[usize]) -> anyhow::Result<Unit> {
        let message = message(&all)?;
        let header = message.header_as_record_batch();
        let header = header.ok_or_else(|| anyhow::anyhow!("this is no record batch"))?;
        let bytes = becomes(header, &all[block.metaDataLength() as usize..])?;
        let batch = self
            .decoder
            .read_record_batch(block, &Buffer::from_vec(all))?;
        let batch = batch.ok_or_else(|| anyhow::anyhow!("there is no record batch"))?;
        let batch = batch.project(columns)?;
        Ok(Unit {
            each: batch.num_rows(),
            batches: Arc::new([Arc::new(batch)]),
            bytes,
        })
    }
}

/// Contents of a file or a stream.
struct Found {
    schema: SchemaRef,
    decoder: FileDecoder,
    dictionaries: Vec<Block>,
    blocks: Vec<Block>,
}

/// Reads the footer of a file.
fn of_file(file: &DiskFile) -> Result<Found, DataError> {
    let cut = || {
        let what = "the file does not end as an Arrow file does: was it copied whole?";
        DataError::bad(file.path(), file.len(), what)
    };
    let mut end = [0; 10];
    let start = file.len().checked_sub(10).ok_or_else(cut)?;
    file.read(&mut end, start)?;
    let bytes = read_footer_length(end).map_err(|_| cut())? as u64;
    let start = start.checked_sub(bytes).ok_or_else(cut)?;
    let mut footer = vec![0; bytes as usize];
    file.read(&mut footer, start)?;
    let read = caught(|| {
        let footer = root_as_footer(&footer).map_err(|error| anyhow::anyhow!("{error}"))?;
        let schema = footer.schema();
        let schema = schema.ok_or_else(|| anyhow::anyhow!("it has no schema"))?;
        let schema = Arc::new(try_fb_to_schema(schema)?);
        let dictionaries = footer.dictionaries();
        let batches = footer.recordBatches();
        Ok(Found {
            decoder: FileDecoder::new(Arc::clone(&schema), footer.version()),
            schema,
            dictionaries: dictionaries.iter().flatten().copied().collect(),
            blocks: batches.iter().flatten().copied().collect(),
        })
    });
    read.map_err(|error| {
        let what = format!(
            "what stands at the end of this Arrow file is damaged: {}",
            damage(&error)
        );
        DataError::bad(file.path(), start, what)
    })
}

/// Walks over the messages of a stream.
fn of_stream(file: &DiskFile) -> Result<Found, DataError> {
    let (mut found, mut at) = (None, 0);
    while at < file.len() {
        let bad = |what: &str| DataError::bad(file.path(), at, what);
        let cut = || bad("the stream ends inside of the message that begins here");
        let mut head = [0; 8];
        if file.len() - at < 8 {
            return Err(cut());
        }
        file.read(&mut head, at)?;
        let bytes = i32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if head[..4] != *MESSAGE || bytes < 0 {
            return Err(bad("no message of Arrow's stream begins here"));
        }
        if bytes == 0 {
            break;
        }
        let metadata = Block::new(at as i64, 8 + bytes.min(i32::MAX - 8), 0);
        let told = part(file, &metadata, metadata.metaDataLength().into())?;
        let own = caught(|| own(&told)).map_err(|error| damaged(file, &metadata, &error))?;
        let block = Block::new(at as i64, metadata.metaDataLength(), own.body);
        match (own.kind, &mut found) {
            (Kind::Schema(schema, decoder), None) => {
                found = Some(Found {
                    schema,
                    decoder,
                    dictionaries: Vec::new(),
                    blocks: Vec::new(),
                });
            }
            (Kind::Batch, Some(found)) => found.blocks.push(block),
            (Kind::Dictionary, Some(found)) if found.blocks.is_empty() => {
                found.dictionaries.push(block);
            }
            (Kind::Dictionary, _) => {
                return Err(bad(
                    "a dictionary changes within the stream: save it as an Arrow file or as Parquet",
                ));
            }
            _ => return Err(bad("a schema begins a stream, and nothing else is one")),
        }
        let next = u64::try_from(own.body).ok();
        let next = next.and_then(|body| (at + metadata.metaDataLength() as u64).checked_add(body));
        at = next.filter(|next| *next <= file.len()).ok_or_else(cut)?;
    }
    found.ok_or_else(|| DataError::bad_path(file.path(), "this Arrow stream is empty"))
}

/// Type of a message.
enum Kind {
    Schema(SchemaRef, FileDecoder),
    Dictionary,
    Batch,
    Other,
}

struct Own {
    kind: Kind,
    body: i64,
}

fn own(metadata: &[u8]) -> anyhow::Result<Own> {
    let message = message(metadata)?;
    let kind = match message.header_type() {
        MessageHeader::Schema => {
            let schema = message.header_as_schema();
            let schema = schema.ok_or_else(|| anyhow::anyhow!("it has no schema"))?;
            let schema = Arc::new(try_fb_to_schema(schema)?);
            Kind::Schema(
                Arc::clone(&schema),
                FileDecoder::new(schema, message.version()),
            )
        }
        MessageHeader::DictionaryBatch => Kind::Dictionary,
        MessageHeader::RecordBatch => Kind::Batch,
        _ => Kind::Other,
    };
    let body = message.bodyLength();
    Ok(Own { kind, body })
}

/// Parses the message at the beginning of these bytes, after its length.
fn message(bytes: &[u8]) -> anyhow::Result<Message<'_>> {
    let skipped = if bytes.starts_with(MESSAGE) { 8 } else { 4 };
    let own = bytes.get(skipped..).unwrap_or_default();
    root_as_message(own).map_err(|error| anyhow::anyhow!("{error}"))
}

/// Reads the first bytes of a block.
fn part(file: &DiskFile, block: &Block, bytes: i64) -> Result<Vec<u8>, DataError> {
    let start = u64::try_from(block.offset()).ok();
    let bytes = u64::try_from(bytes).ok().filter(|own| *own <= file.len());
    let range = start.zip(bytes).filter(|(start, bytes)| {
        start
            .checked_add(*bytes)
            .is_some_and(|end| end <= file.len())
    });
    let Some((start, bytes)) = range else {
        let what = "a batch is said to be outside of the file: was it copied whole?";
        return Err(DataError::bad_path(file.path(), what));
    };
    let mut own = vec![0; bytes as usize];
    file.read(&mut own, start)?;
    Ok(own)
}

fn whole(file: &DiskFile, block: &Block) -> Result<Vec<u8>, DataError> {
    let metadata = i64::from(block.metaDataLength());
    let all = metadata.checked_add(block.bodyLength());
    let fits = (0..=LONGEST as i64).contains(&metadata) && block.bodyLength() >= 0;
    part(file, block, all.filter(|_| fits).unwrap_or(-1))
}

/// Returns the decompressed size of a batch, from the lengths before its compressed buffers.
fn becomes(batch: RecordBatch<'_>, body: &[u8]) -> anyhow::Result<u64> {
    let compressed = batch.compression().is_some();
    let mut all = 0_u64;
    for buffer in batch.buffers().iter().flatten() {
        let (Ok(start), Ok(bytes)) = (
            usize::try_from(buffer.offset()),
            usize::try_from(buffer.length()),
        ) else {
            anyhow::bail!("a buffer is said to be outside of its batch");
        };
        let end = start.checked_add(bytes);
        let Some(own) = end.and_then(|end| body.get(start..end)) else {
            anyhow::bail!("a buffer is said to be outside of its batch");
        };
        let told = own.first_chunk().map(|told| i64::from_le_bytes(*told));
        all = all.saturating_add(match told {
            // -1 marks a buffer that is stored uncompressed, as compression did not pay.
            Some(told) if compressed => u64::try_from(told).unwrap_or(bytes as u64),
            _ => bytes as u64,
        });
    }
    refuse_dense(body.len() as u64, all).map_err(anyhow::Error::msg)?;
    Ok(all)
}

fn damaged(file: &DiskFile, block: &Block, error: &anyhow::Error) -> DataError {
    let place = block.offset().unsigned_abs();
    DataError::bad(
        file.path(),
        place,
        format!("what begins here is damaged: {}", damage(error)),
    )
}
