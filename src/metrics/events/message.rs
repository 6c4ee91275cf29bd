//! The protocol buffer `Event` of TensorFlow (`core/util/event.proto`), as far as scalars
//! need it.

/// What an event is about.
#[derive(Debug)]
pub(super) enum What<'a> {
    /// First of a file.
    Version,
    /// A run goes on with this step: later events that were read before are void.
    Start,
    /// Names and values.
    Scalars(&'a [(String, f64)]),
}

/// The fields' numbers.
mod field {
    pub(super) const WALL_TIME: u64 = 1;
    pub(super) const STEP: u64 = 2;
    pub(super) const FILE_VERSION: u64 = 3;
    pub(super) const SUMMARY: u64 = 5;
    pub(super) const SESSION_LOG: u64 = 7;
    /// `Summary.value`, `Summary.Value.tag` and `.simple_value`.
    pub(super) const VALUE: u64 = 1;
    pub(super) const TAG: u64 = 1;
    pub(super) const SIMPLE_VALUE: u64 = 2;
    /// `SessionLog.status`, and its value `START`.
    pub(super) const STATUS: u64 = 1;
    pub(super) const START: u64 = 1;
}

/// How a field's value is written.
mod wire {
    pub(super) const VARINT: u64 = 0;
    pub(super) const EIGHT_BYTES: u64 = 1;
    pub(super) const LENGTH: u64 = 2;
    pub(super) const FOUR_BYTES: u64 = 5;
}

/// An event of `step` at `wall_time`, in seconds since 1970.
pub(super) fn event(wall_time: f64, step: u64, what: &What<'_>) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, field::WALL_TIME, wire::EIGHT_BYTES);
    event.extend(wall_time.to_le_bytes());
    key(&mut event, field::STEP, wire::VARINT);
    varint(&mut event, step);
    match what {
        What::Version => bytes(&mut event, field::FILE_VERSION, b"brain.Event:2"),
        What::Start => {
            let mut log = Vec::new();
            key(&mut log, field::STATUS, wire::VARINT);
            varint(&mut log, field::START);
            bytes(&mut event, field::SESSION_LOG, &log);
        }
        What::Scalars(scalars) => bytes(&mut event, field::SUMMARY, &summary(scalars)),
    }
    event
}

fn summary(scalars: &[(String, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, number) in scalars {
        let mut value = Vec::new();
        bytes(&mut value, field::TAG, tag.as_bytes());
        key(&mut value, field::SIMPLE_VALUE, wire::FOUR_BYTES);
        // TensorBoard's scalars are single precision.
        value.extend((*number as f32).to_le_bytes());
        bytes(&mut summary, field::VALUE, &value);
    }
    summary
}

/// The step of an event, and whether it has scalars; nothing if it is no event.
pub(super) fn step(mut event: &[u8]) -> Option<(u64, bool)> {
    let (mut step, mut scalars) = (0, false);
    while !event.is_empty() {
        let key = take_varint(&mut event)?;
        match (key >> 3, key & 7) {
            (field::STEP, wire::VARINT) => step = take_varint(&mut event)?,
            (_, wire::VARINT) => drop(take_varint(&mut event)?),
            (_, wire::EIGHT_BYTES) => event = event.get(8..)?,
            (_, wire::FOUR_BYTES) => event = event.get(4..)?,
            (number, wire::LENGTH) => {
                scalars |= number == field::SUMMARY;
                let length = usize::try_from(take_varint(&mut event)?).ok()?;
                event = event.get(length..)?;
            }
            _ => return None,
        }
    }
    Some((step, scalars))
}

fn key(out: &mut Vec<u8>, number: u64, wire: u64) {
    varint(out, number << 3 | wire);
}

fn bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    key(out, number, wire::LENGTH);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_back_and_no_part_of_one_is() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let scalars = [("a/b".to_owned(), 1.5), (String::new(), f64::NAN)];
            let event = event(1e9, number, &What::Scalars(&scalars));
            assert_eq!(step(&event), Some((number, true)));
            assert_eq!(step(&event[..event.len() - 1]), None);
        }
        assert_eq!(step(&event(0.0, 0, &What::Version)), Some((0, false)));
        assert_eq!(step(&event(0.0, 7, &What::Start)), Some((7, false)));
    }
}
