//! Groups of one host, here threads of one process: messages through shared memory.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::testing::ranks;
use crate::world::Group;
use tch::{Device, Kind};

fn numbers(count: i64, from: i64) -> Tensor {
    Tensor::arange(count, (Kind::Int64, Device::Cpu)) + from
}

fn is_shared(group: &Group) -> bool {
    group.local.is_some() || !cfg!(target_os = "linux")
}

#[test]
fn messages_of_all_sizes_arrive_in_the_order_of_their_tags() {
    // One is empty, some wrap around the end of the memory, and one is larger than all of it.
    const SIZES: [i64; 6] = [3, 0, 50_000, 100, 400_000, 1];
    ranks(2, |world| {
        let group = world.group().unwrap();
        assert!(is_shared(&group));
        let other = 1 - world.rank();
        let mut sends = Vec::new();
        for (index, count) in SIZES.into_iter().enumerate() {
            for tag in 0..3 {
                let tensor = numbers(count, index as i64 + i64::from(tag));
                sends.push(group.send(&tensor, other, tag).unwrap());
            }
        }
        // The last tag first: earlier messages are kept.
        for tag in [2, 0, 1] {
            for (index, count) in SIZES.into_iter().enumerate() {
                // More room than needed.
                let came = group.receive(&[count + 7], Kind::Int64, other, tag);
                let came = came.unwrap().wait().unwrap().narrow(0, 0, count);
                assert_eq!(came, numbers(count, index as i64 + i64::from(tag)));
            }
        }
        for send in sends {
            let _ = send.wait().unwrap();
        }
        world.leave().unwrap();
    });
}

#[test]
fn a_send_without_a_receiver_waits_for_nobody() {
    const COUNT: i64 = 1 << 20;
    ranks(2, |world| {
        let group = world.group().unwrap();
        if world.rank() == 0 {
            let sent = group.send(&numbers(COUNT, 0), 1, 7).unwrap();
            // Sent after it, and taken before it has room.
            let go = group.receive(&[1], Kind::Int64, 1, 8).unwrap();
            let _ = go.wait().unwrap();
            let _ = sent.wait().unwrap();
        } else {
            let go = group.send(&numbers(1, 0), 0, 8).unwrap();
            let _ = go.wait().unwrap();
            let came = group.receive(&[COUNT], Kind::Int64, 0, 7).unwrap();
            assert_eq!(came.wait().unwrap(), numbers(COUNT, 0));
        }
        world.leave().unwrap();
    });
}

#[test]
fn a_failure_ends_waits_amid_a_message_and_the_next_generation_is_clean() {
    const COUNT: i64 = 1 << 20;
    ranks(2, |world| {
        let other = 1 - world.rank();
        for round in 0..3 {
            let group = world.group().unwrap();
            assert!(is_shared(&group));
            if world.rank() == 0 {
                // The other one never takes all of it.
                let sent = group.send(&numbers(COUNT, round), 1, 1).unwrap();
                let said = world.abort("as asked");
                assert_eq!(said.why, "as asked");
                assert_eq!(sent.wait().unwrap_err().why, "as asked");
            } else {
                let some = group.receive(&[COUNT], Kind::Int64, 0, 2).unwrap();
                assert_eq!(some.wait().unwrap_err().why, "as asked");
            }
            drop(group);
            world.renew().unwrap();
            let group = world.group().unwrap();
            let sent = group.send(&numbers(4, round), other, 1).unwrap();
            let came = group.receive(&[4], Kind::Int64, other, 1).unwrap();
            assert_eq!(came.wait().unwrap(), numbers(4, round));
            let _ = sent.wait().unwrap();
            drop(group);
            // Both have finished it before one of them fails again.
            let group = world.group().unwrap();
            drop(group);
        }
        world.leave().unwrap();
    });
}

#[test]
fn a_closed_queue_and_one_that_is_too_long_are_told() {
    ranks(2, |world| {
        let group = world.group().unwrap();
        if world.rank() == 0 {
            let sent = group.send(&numbers(9, 0), 1, 1).unwrap();
            let _ = sent.wait().unwrap();
            // A process that leaves is lost to one that may still be connecting.
            let _ = world.watch.wait_for_end();
        } else {
            let came = group.receive(&[8], Kind::Int64, 0, 1).unwrap();
            let lost = came.wait().unwrap_err();
            let part = "a message has 72 bytes where 64 were expected";
            assert!(lost.gone && lost.why.contains(part), "{lost}");
        }
    });
    ranks(2, |world| {
        let group = world.group().unwrap();
        if world.rank() == 0 {
            let sent = group.send(&numbers(1, 5), 1, 1).unwrap();
            let _ = sent.wait().unwrap();
            group.local.as_ref().unwrap().outboxes[&1].close();
            let _ = world.watch.wait_for_end();
        } else {
            let first = group.receive(&[1], Kind::Int64, 0, 1).unwrap();
            let second = group.receive(&[1], Kind::Int64, 0, 1).unwrap();
            // The earlier message has arrived.
            assert_eq!(first.wait().unwrap(), numbers(1, 5));
            let lost = second.wait().unwrap_err();
            assert!(lost.why.contains("has closed it"), "{lost}");
        }
    });
}

#[test]
fn several_threads_wait_for_one_process() {
    ranks(2, |world| {
        let group = Arc::new(world.group().unwrap());
        let other = 1 - world.rank();
        let (done, all) = mpsc::channel();
        for tag in 0..8 {
            let (group, done) = (Arc::clone(&group), done.clone());
            std::thread::spawn(move || {
                for round in 0..50 {
                    let sent = group.send(&numbers(300, round), other, tag).unwrap();
                    let came = group.receive(&[300], Kind::Int64, other, tag).unwrap();
                    assert_eq!(came.wait().unwrap(), numbers(300, round));
                    let _ = sent.wait().unwrap();
                }
                drop(group);
                done.send(()).unwrap();
            });
        }
        for _ in 0..8 {
            all.recv_timeout(Duration::from_secs(30)).unwrap();
        }
        world.leave().unwrap();
    });
}

#[test]
fn offers_are_read_as_they_were_written() {
    let offer = Offer {
        host: "1234 net:[5]",
        process: 6,
        file: 7,
        name: u64::MAX,
    };
    let written = offer.written();
    let read = Offer::read(written.as_bytes()).unwrap();
    assert_eq!(
        (read.host, read.process, read.file, read.name),
        ("1234 net:[5]", 6, 7, u64::MAX)
    );
    for odd in [&b""[..], b"6 7", b"6 7 -1 x", b"\xff 7 8 x"] {
        assert!(Offer::read(odd).is_none());
    }
}
