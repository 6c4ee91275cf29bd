//! TFRecord frames: `length: u64, crc(length): u32, data, crc(data): u32`, little-endian.

/// Bytes around the data.
pub(super) const HEAD: usize = 12;
const TAIL: usize = 4;

/// A record with its frame.
pub(super) fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(HEAD + data.len() + TAIL);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_crc(data).to_le_bytes());
    record
}

/// What begins a text of records.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First<'a> {
    /// A whole record: its data, and the bytes that it takes with its frame.
    Whole(&'a [u8], usize),
    /// The text ends within the record.
    Torn,
    /// A checksum is not that of the bytes.
    Damaged(&'static str),
}

pub(super) fn first(bytes: &[u8]) -> First<'_> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return First::Torn;
    };
    let Some((crc, rest)) = rest.split_first_chunk::<4>() else {
        return First::Torn;
    };
    if u32::from_le_bytes(*crc) != masked_crc(length) {
        return First::Damaged("the checksum of its length");
    }
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let Some((data, rest)) = rest.split_at_checked(length) else {
        return First::Torn;
    };
    let Some((crc, _)) = rest.split_first_chunk::<4>() else {
        return First::Torn;
    };
    if u32::from_le_bytes(*crc) != masked_crc(data) {
        return First::Damaged("the checksum of its data");
    }
    First::Whole(data, HEAD + length + TAIL)
}

/// CRC-32C, rotated and moved so that the checksum of a checksum is none.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksums as TFRecord's description has them, computed bit by bit.
    #[test]
    fn a_frame_has_length_checksum_data_checksum() {
        let wanted = [
            &[3, 0, 0, 0, 0, 0, 0, 0][..],
            &[0xb0, 0x99, 0x49, 0x0e],
            b"abc",
            &[0x6e, 0x57, 0xf1, 0x21],
        ];
        let record = record(b"abc");
        assert_eq!(record, wanted.concat());
        assert_eq!(first(&record), First::Whole(b"abc", record.len()));
    }

    #[test]
    fn every_cut_is_torn_and_every_flipped_bit_is_seen() {
        let record = record(b"some data");
        for end in 0..record.len() {
            assert_eq!(first(&record[..end]), First::Torn, "{end}");
        }
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(first(&flipped), First::Damaged(_)), "bit {bit}");
        }
    }
}
