//! TFRecord frames: `length: u64, crc(length): u32, data, crc(data): u32`, little-endian.

/// Bytes before the data: the length and its checksum.
pub(super) const HEADER: u64 = 12;
/// Bytes around the data: the header, and the data's checksum.
pub(super) const AROUND: u64 = HEADER + 4;

/// Returns the bytes before data of this length.
pub(super) fn header(length: u64) -> [u8; HEADER as usize] {
    let mut header = [0; HEADER as usize];
    header[..8].copy_from_slice(&length.to_le_bytes());
    let sum = masked(&header[..8]);
    header[8..].copy_from_slice(&sum);
    header
}

/// Returns the length in a header, if its checksum is right.
pub(crate) fn length(header: &[u8]) -> Option<u64> {
    let (length, rest) = header.split_first_chunk::<8>()?;
    let sum = rest.first_chunk::<4>()?;
    (masked(length) == *sum).then(|| u64::from_le_bytes(*length))
}

/// Returns the checksum of data: CRC-32C, rotated and offset as in TensorFlow, so that checksums of
/// data that contains checksums are not weak.
pub(super) fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
        .to_le_bytes()
}

/// Frames the data.
pub fn record(data: &[u8]) -> Vec<u8> {
    [&header(data.len() as u64), data, &masked(data)].concat()
}

/// The first record of a byte string.
#[derive(Debug, PartialEq, Eq)]
pub enum First<'a> {
    /// A complete record: its data, and its length with the frame.
    Whole(&'a [u8], usize),
    /// The bytes end within the record.
    Torn,
    /// A checksum is wrong.
    Damaged(&'static str),
}

/// Reads the first record of a file from its first bytes.
pub fn first(bytes: &[u8]) -> First<'_> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER as usize) else {
        return First::Torn;
    };
    let Some(length) = length(header) else {
        return First::Damaged("the checksum of its length");
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let Some((data, rest)) = rest.split_at_checked(length) else {
        return First::Torn;
    };
    let Some(sum) = rest.first_chunk::<4>() else {
        return First::Torn;
    };
    if *sum != masked(data) {
        return First::Damaged("the checksum of its data");
    }
    First::Whole(data, length + AROUND as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checksums by TFRecord's description, computed bit by bit.
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
