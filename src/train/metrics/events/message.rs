//! TensorFlow's protocol buffer `Event` (`core/util/event.proto`), as far as needed for scalars.

use prost::{Message, Oneof};

/// Contents of an event.
#[derive(Debug)]
pub(super) enum What<'a> {
    /// First event of a file.
    Version,
    /// A resumed run starts with this step: later events read before are invalid.
    Start,
    /// Names and values.
    Scalars(&'a [(String, f64)]),
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, optional, tag = "1")]
    wall_time: Option<f64>,
    /// An `int64` in TensorFlow, with the same encoding.
    #[prost(uint64, optional, tag = "2")]
    step: Option<u64>,
    #[prost(oneof = "Content", tags = "3, 5, 7")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Content {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

/// `Summary.Value`.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    /// TensorBoard's scalars are single precision. A `oneof` field in TensorFlow, so it is also written
    /// if 0.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    /// An `enum` in TensorFlow.
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SessionLog.SessionStatus.START`.
const START: i32 = 1;

/// Encodes an event of `step` at `wall_time`, in seconds since 1970.
pub(super) fn event(wall_time: f64, step: u64, what: &What<'_>) -> Vec<u8> {
    let content = match what {
        What::Version => Content::FileVersion("brain.Event:2".to_owned()),
        What::Start => Content::SessionLog(SessionLog { status: START }),
        What::Scalars(scalars) => Content::Summary(Summary {
            value: scalars.iter().map(scalar).collect(),
        }),
    };
    let event = Event {
        wall_time: Some(wall_time),
        step: Some(step),
        content: Some(content),
    };
    event.encode_to_vec()
}

fn scalar((tag, number): &(String, f64)) -> Value {
    Value {
        tag: tag.clone(),
        simple_value: Some(*number as f32),
    }
}

/// Returns the step of an event, and whether it has scalars; `None` if it is not an event.
pub(super) fn step(event: &[u8]) -> Option<(u64, bool)> {
    let event = Event::decode(event).ok()?;
    let scalars = matches!(event.content, Some(Content::Summary(_)));
    Some((event.step.unwrap_or(0), scalars))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As TensorFlow writes it; a value of 0 is written too.
    #[test]
    fn an_event_has_the_bytes_of_its_description() {
        let wanted = [
            &[0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f][..], // 1: 1.5
            &[0x10, 0xac, 0x02],                       // 2: 300
            &[0x2a, 10, 0x0a, 8],                      // 5, 1
            &[0x0a, 1, b'a', 0x15, 0, 0, 0, 0],        // 1: "a", 2: 0.0
        ];
        let event = event(1.5, 300, &What::Scalars(&[("a".to_owned(), 0.0)]));
        assert_eq!(event, wanted.concat());
    }

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
