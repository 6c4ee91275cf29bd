use proptest::prelude::*;

use super::*;
use crate::ffi::identity;
use crate::wire::Incoming;

/// Sends and receives values as bytes, as between processes.
fn there(values: &Values) -> Values {
    const MARK: [u8; 3] = [1, 2, 3];
    let outgoing = Outgoing::new(values, None).unwrap();
    let bytes = |message: &Tensor| {
        assert_eq!((message.kind(), message.dim()), (Kind::Uint8, 1));
        Vec::<u8>::try_from(message).unwrap()
    };
    let first = bytes(&outgoing.first(&MARK).unwrap());
    let mut rest: Vec<Vec<u8>> = outgoing.rest().unwrap().iter().map(bytes).collect();
    assert!(first.starts_with(&MARK) && first.len() <= MARK.len() + FIRST);
    let length = Header::length(&first[MARK.len()..]).unwrap();
    let mut written = first[MARK.len()..][..length.min(FIRST)].to_vec();
    if length > FIRST {
        written.extend(rest.remove(0));
    }
    assert_eq!(written, outgoing.header());
    let header = Header::read(&written, 1 << 20).unwrap();
    let inline = header.is_inline();
    assert_eq!(header.received_ahead(), rest.len());
    let mut incoming = Incoming::new(header, None).unwrap();
    let messages = if inline {
        Vec::new()
    } else {
        incoming.messages().unwrap()
    };
    assert_eq!(messages.len(), rest.len());
    if inline {
        let cut = Tensor::from_slice(&first[..first.len() - 1]);
        let empty = first.len() == MARK.len() + length;
        assert!(empty || incoming.fill(&cut, MARK.len() + length).is_err());
        // The buffer after a short message has undefined content.
        let long = Tensor::from_slice(&[&first[..], &[7; 9]].concat());
        incoming.fill(&long, MARK.len() + length).unwrap();
    } else {
        assert_eq!(first.len(), MARK.len() + length.min(FIRST));
    }
    for (buffer, sent) in messages.iter().zip(&rest) {
        assert_eq!(buffer.numel(), sent.len());
        buffer.shallow_clone().copy_(&Tensor::from_slice(sent));
    }
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
    let values: Values = (0..80)
        .map(|i| numbers(Kind::Float, 24).view([2, 3, 2, 2]) + i)
        .collect();
    let outgoing = Outgoing::new(&values, None).unwrap();
    assert!(outgoing.header().len() > FIRST);
    assert_eq!(outgoing.rest().unwrap().len(), 2);
    check_same(&values, &there(&values));
}

/// Like a stage's gradients: many small ones of several kinds, some absent, one empty, one
/// identical to another, and large ones between them.
#[test]
fn many_small_tensors_go_together_and_large_ones_apart() {
    let mut values = Values::new();
    for i in 0..24 {
        let kind = SENT[i % SENT.len()];
        values.push((i % 5 != 3).then(|| numbers(kind, 300 + i as i64)));
        if i % 8 == 7 {
            values.push(Some(numbers(Kind::Float, 20_000) + i as i64));
            values.push(Some(numbers(Kind::Double, 0)));
            values.push(values.get(0).map(Tensor::shallow_clone));
        }
    }
    let outgoing = Outgoing::new(&values, None).unwrap();
    let sizes: Vec<usize> = outgoing.rest().unwrap().iter().map(|m| m.numel()).collect();
    assert_eq!(sizes.len(), 4, "{sizes:?}");
    assert_eq!(sizes[1..], [80_000; 3]);
    check_same(&values, &there(&values));
}

/// Gradients of a small stage are in two messages, and the next step's are received ahead.
#[test]
fn gradients_of_a_small_stage_need_one_message_besides_their_header() {
    let sizes: [&[i64]; 2] = [&[32, 32], &[32]];
    let values: Values = (0..32)
        .map(|i| Tensor::ones(sizes[i % 2], (Kind::Float, Device::Cpu)))
        .collect();
    let outgoing = Outgoing::new(&values, None).unwrap();
    assert!(outgoing.header().len() < FIRST);
    assert_eq!(outgoing.rest().unwrap().len(), 1);
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
