use proptest::prelude::*;

use super::*;
use crate::torch::ffi::identity;
use crate::torch::wire::{FIRST, INLINE};

/// As it would be in another process: sent as bytes.
fn there(values: &Values) -> Values {
    let outgoing = Outgoing::new(values, None).unwrap();
    let header = outgoing.header().to_vec();
    assert!(header.len() >= FIRST);
    assert_eq!(
        Incoming::header_bytes(&header[..FIRST]).unwrap().max(FIRST),
        header.len()
    );
    let messages = outgoing.memories().map(|message| {
        assert_eq!((message.kind(), message.dim()), (Kind::Uint8, 1));
        Vec::<u8>::try_from(message).unwrap()
    });
    let messages: Vec<Vec<u8>> = messages.collect();
    let bytes: usize = messages.iter().map(Vec::len).sum();
    let inline = is_inline(&header).unwrap();
    assert_eq!(inline, header.len() == FIRST && bytes <= INLINE);
    let ahead = if inline { 0 } else { messages.len() };
    assert_eq!(received_ahead(&header).unwrap(), ahead);
    let incoming = Incoming::new(&header, 1 << 20, None).unwrap();
    if inline {
        let mut behind = messages.concat();
        assert!(
            behind.is_empty() || incoming.fill(&behind[1..]).is_err(),
            "cut off"
        );
        // What the buffer of a message has behind a short one is nobody's.
        behind.extend([7; 9]);
        incoming.fill(&behind).unwrap();
    } else {
        for (buffer, sent) in incoming.buffers().zip(&messages) {
            assert_eq!(buffer.numel(), sent.len());
            buffer.shallow_clone().copy_(&Tensor::from_slice(sent));
        }
    }
    assert_eq!(incoming.buffers().count(), messages.len());
    incoming.values().unwrap()
}

fn same_bits(one: &Tensor, other: &Tensor) -> bool {
    let bytes = |tensor: &Tensor| {
        let flat = tensor.detach().contiguous().view(-1);
        let bytes = if flat.numel() == 0 {
            flat
        } else {
            flat.view_dtype(Kind::Uint8)
        };
        Vec::<u8>::try_from(&bytes.to_kind(Kind::Uint8)).unwrap()
    };
    bytes(one) == bytes(other)
}

fn check_same(values: &Values, arrived: &Values) {
    assert_eq!(values.len(), arrived.len());
    for (one, other) in values.iter().zip(arrived.iter()) {
        let (Some(one), Some(other)) = (one, other) else {
            assert!(one.is_none() && other.is_none());
            continue;
        };
        assert_eq!(one.kind(), other.kind());
        assert_eq!((one.size(), one.stride()), (other.size(), other.stride()));
        assert_eq!(one.requires_grad(), other.requires_grad());
        assert!(other.is_leaf());
        assert!(same_bits(one, other));
        if one.numel() > 0 {
            let alignment = |tensor: &Tensor| tensor.data_ptr() as u64 % ALIGNMENT;
            assert_eq!(alignment(one), alignment(other));
        }
    }
    // Values without elements share none.
    let aliases = |values: &Values| {
        let some = values
            .iter()
            .map(|value| value.filter(|value| value.numel() > 0));
        ffi::aliases(some).unwrap()
    };
    assert_eq!(aliases(values), aliases(arrived));
    let identities = |values: &Values| -> Vec<Option<usize>> {
        let all: Vec<_> = values
            .iter()
            .map(|value| value.map(|value| identity(value).unwrap().0))
            .collect();
        let first = |own: &Option<u64>| own.and_then(|_| all.iter().position(|other| other == own));
        all.iter().map(first).collect()
    };
    assert_eq!(identities(values), identities(arrived));
}

const SENT: [Kind; 8] = [
    Kind::Float,
    Kind::Double,
    Kind::Int64,
    Kind::Bool,
    Kind::Uint8,
    Kind::BFloat16,
    Kind::Half,
    Kind::ComplexFloat,
];

fn numbers(kind: Kind, count: i64) -> Tensor {
    let numbers = Tensor::arange(count, (Kind::Float, Device::Cpu)) * 1.7 - 3.0;
    numbers.to_kind(kind)
}

/// Views of one memory, by what was done to it.
fn view_of(memory: &Tensor, how: usize, cut: i64) -> Tensor {
    let matrix = memory.view([4, 6]);
    match how {
        0 => memory.shallow_clone(),
        1 => matrix,
        2 => matrix.tr(),
        3 => matrix.narrow(1, cut % 6, 1),
        4 => matrix.narrow(0, cut % 4, 1),
        5 => matrix.narrow(1, 0, 1).expand([4, 5], false),
        6 => memory.narrow(0, cut % 24, 0),
        7 => memory.as_strided([3, 3], [2, 1], cut % 8),
        8 => memory.as_strided([2, 2], [11, 3], cut % 8),
        _ => memory.select(0, cut % 24),
    }
}

proptest! {
    #[test]
    fn values_arrive_as_they_are(
        all in prop::collection::vec(
            (0_usize..3, 0_usize..10, 0_i64..24, any::<bool>(), any::<bool>()), 0..6),
        kinds in prop::collection::vec(prop::sample::select(SENT.to_vec()), 3),
        shift in 0_i64..5,
    ) {
        let memories: Vec<Tensor> = kinds.iter().map(|kind| numbers(*kind, 24 + shift).narrow(0, shift, 24)).collect();
        let mut values = Values::new();
        for (memory, how, cut, grad, again) in all {
            if how == 9 && cut > 20 {
                values.push(None);
                continue;
            }
            let kind = kinds[memory];
            let grad = grad && matches!(kind, Kind::Float | Kind::Double);
            let value = view_of(&memories[memory], how, cut).detach().set_requires_grad(grad);
            if again {
                values.push(Some(value.shallow_clone()));
            }
            values.push(Some(value));
        }
        check_same(&values, &there(&values));
    }
}

#[test]
fn who_writes_to_one_writes_to_those_that_share_its_memory() {
    let memory = numbers(Kind::Float, 12);
    let values: Values = [memory.view([3, 4]), memory.narrow(0, 4, 4)]
        .into_iter()
        .collect();
    let arrived = there(&values);
    let _ = arrived.get(0).unwrap().shallow_clone().fill_(7.0);
    assert_eq!(
        arrived.get(1).unwrap().sum(Kind::Float).double_value(&[]),
        28.0
    );
    // And libtorch knows of it: a value that was saved for a backward was changed.
    let values: Values = [memory.view([3, 4]), memory.narrow(0, 4, 4)]
        .into_iter()
        .collect();
    let arrived = there(&values);
    let first = arrived
        .get(0)
        .unwrap()
        .shallow_clone()
        .set_requires_grad(false);
    let second = arrived.get(1).unwrap();
    let weight = Tensor::ones([4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let product = (&weight * second).sum(Kind::Float);
    let _ = first.shallow_clone().fill_(1.0);
    assert!(product.f_backward().is_err());
}

#[test]
fn headers_of_many_values_need_a_second_message() {
    let values: Values = (0..40)
        .map(|i| numbers(Kind::Float, 24).view([2, 3, 2, 2]) + i)
        .collect();
    let outgoing = Outgoing::new(&values, None).unwrap();
    assert!(outgoing.header().len() > FIRST);
    assert_eq!(outgoing.memories().count(), 40);
    check_same(&values, &there(&values));
}

#[test]
fn memory_is_sent_as_it_is_where_it_has_no_gaps() {
    let memory = numbers(Kind::Float, 24);
    let outgoing = |tensor: Tensor| {
        let outgoing = Outgoing::new(&tensor.into(), None).unwrap();
        let sent = outgoing.memories().last().unwrap().shallow_clone();
        (sent.data_ptr() == memory.data_ptr(), sent.numel())
    };
    assert_eq!(outgoing(memory.view([4, 6]).tr()), (true, 96));
    assert_eq!(
        outgoing(memory.narrow(0, 0, 6).expand([9, 6], false)),
        (true, 24)
    );
    assert_eq!(outgoing(memory.view([4, 6]).narrow(1, 0, 2)), (false, 32));
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let complex = numbers(Kind::ComplexFloat, 4);
    for (value, part) in [
        (complex.conj(), "conjugated"),
        (
            numbers(Kind::Float, 4).to_sparse(None, None::<i64>, None),
            "sparse",
        ),
    ] {
        let error = Outgoing::new(&value.into(), None).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
