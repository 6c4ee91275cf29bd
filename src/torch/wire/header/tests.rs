use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const LIMIT: u64 = 1 << 40;

/// A value alone in its memory, which is sent whole or as elements.
fn alone() -> impl Strategy<Value = (MemoryHeader, ValueHeader)> {
    let dimension = (0_i64..5, 0_i64..7);
    let dimensions = prop::collection::vec(dimension, 0..6);
    let kind = prop::sample::select(KINDS.to_vec());
    (dimensions, kind, any::<bool>(), any::<bool>(), 0_u64..4).prop_map(
        |(dimensions, (kind, _, item), requires_grad, whole, offset)| {
            let (sizes, strides) = dimensions.into_iter().unzip();
            let value = ValueHeader {
                memory: 0,
                same: None,
                kind,
                requires_grad,
                offset: offset * item,
                sizes,
                strides,
            };
            let layout = if whole {
                Layout::Whole
            } else {
                Layout::Elements
            };
            let bytes = if whole { value.end() } else { value.bytes() };
            let memory = MemoryHeader {
                bytes: bytes.unwrap(),
                layout,
                misalignment: 16,
                by_gpu: false,
            };
            (memory, value)
        },
    )
}

fn header() -> impl Strategy<Value = Header> {
    prop::collection::vec(prop::option::of(alone()), 0..6).prop_map(|all| {
        let mut header = Header::default();
        for one in all {
            let value = one.map(|(memory, value)| {
                header.memories.push(memory);
                let memory = header.memories.len() - 1;
                ValueHeader { memory, ..value }
            });
            header.values.push(value);
        }
        header
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(header in header()) {
        let bytes = header.write().unwrap();
        prop_assert_eq!(bytes.len(), header.written());
        prop_assert_eq!(Header::length(&bytes).unwrap(), bytes.len());
        prop_assert_eq!(Header::read(&bytes, LIMIT).unwrap(), header);
    }

    #[test]
    fn what_is_changed_on_its_way_is_refused_or_fits_together(
        header in header(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut bytes = header.write().unwrap();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        fits(&bytes);
    }

    #[test]
    fn any_bytes_are_refused_or_fit_together(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        honest in any::<bool>(),
    ) {
        if honest && bytes.len() >= 8 {
            let length = bytes.len() as u32;
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
        }
        fits(&bytes);
    }
}

/// Checks that a readable value lies within its memory, and no memory exceeds the limit.
fn fits(bytes: &[u8]) {
    const SMALL: u64 = 1 << 20;
    let Ok(header) = Header::read(bytes, SMALL) else {
        return;
    };
    for value in header.values.iter().flatten() {
        let span = header.span(value.memory);
        assert!(value.end().unwrap() <= span && span <= SMALL);
        assert_eq!(value.sizes.len(), value.strides.len());
    }
    for memory in &header.memories {
        assert!(memory.bytes <= SMALL && u64::from(memory.misalignment) < ALIGNMENT);
    }
    assert_eq!(
        Header::read(&header.write().unwrap(), SMALL).unwrap(),
        header
    );
}

/// Runs for `WIRE_FUZZ` seconds: changes valid headers byte by byte to random values. A quick round
/// without the variable.
#[test]
fn changed_headers_for_a_while() {
    let seconds = std::env::var("WIRE_FUZZ").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % below
    };
    let (mut tried, mut read) = (0_u64, 0_u64);
    loop {
        let tree = header().new_tree(&mut runner).unwrap();
        let mut bytes = proptest::strategy::ValueTree::current(&tree)
            .write()
            .unwrap();
        for _ in 0..200 {
            let used = Header::length(&bytes).unwrap_or(256).min(bytes.len());
            let place = next(used.max(1));
            let before = bytes[place];
            bytes[place] = next(256) as u8;
            fits(&bytes);
            tried += 1;
            read += u64::from(Header::read(&bytes, LIMIT).is_ok());
            // Now and then a change stays.
            if next(8) > 0 {
                bytes[place] = before;
            }
        }
        if Instant::now() >= end {
            break;
        }
    }
    println!("{tried} headers tried, {read} of them could be read");
    assert!(read > 0);
}

#[test]
fn what_does_not_fit_is_told() {
    let value = ValueHeader {
        memory: 0,
        same: None,
        kind: Kind::Float,
        requires_grad: false,
        offset: 0,
        sizes: vec![4, 4],
        strides: vec![4, 1],
    };
    let memory = MemoryHeader {
        bytes: 64,
        layout: Layout::Whole,
        misalignment: 0,
        by_gpu: false,
    };
    let told = |memories: &[MemoryHeader], values: &[&ValueHeader], limit: u64| {
        let header = Header {
            memories: memories.to_vec(),
            values: values.iter().map(|value| Some((*value).clone())).collect(),
        };
        let read = Header::read(&header.write().unwrap(), limit);
        read.err().map(|WireError(what)| what)
    };
    assert_eq!(told(&[memory], &[&value], 64), None);
    assert_eq!(told(&[memory], &[&value, &value], 64), None);
    let has = |told: Option<String>, part: &str| {
        assert!(told.as_ref().unwrap().contains(part), "{told:?}")
    };
    has(told(&[memory], &[&value], 63), "more than 63 bytes");
    has(told(&[], &[&value], 64), "memory 0 is not there");
    let small = MemoryHeader {
        bytes: 60,
        ..memory
    };
    has(told(&[small], &[&value], 64), "not where its memory is");
    let odd = ValueHeader {
        offset: 2,
        sizes: vec![1],
        strides: vec![1],
        ..value.clone()
    };
    has(told(&[memory], &[&odd], 64), "not where its memory is");
    let elements = MemoryHeader {
        layout: Layout::Elements,
        ..memory
    };
    has(
        told(&[elements], &[&value, &value], 64),
        "used by 2 tensors",
    );
    has(told(&[memory, memory], &[&value], 64), "used by 0 tensors");
    let huge = ValueHeader {
        sizes: vec![i64::MAX, 4],
        ..value
    };
    has(told(&[memory], &[&huge], 64), "not where its memory is");
}
