//! Worlds of several processes, here on threads of one: cases in which no process must end.

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use super::{Times, Words, World, WorldError};
use crate::Store;
use crate::testing::{TIMES, free_port, ranks, words};
use tch::{Kind, Tensor};

#[test]
fn a_process_that_nobody_has_launched_is_a_world_of_one() {
    let world = World::join(Words::alone()).unwrap();
    let facts = (
        world.rank(),
        world.size(),
        world.local_rank(),
        world.local_size(),
    );
    assert_eq!(facts, (0, 1, 0, 1));
    assert!(world.lost().is_none());
    let (told, heard) = mpsc::channel();
    world.on_abort(move |lost| told.send(lost.clone()).unwrap());
    let lost = world.abort("a layer failed");
    assert_eq!(heard.try_recv().unwrap(), lost);
    assert_eq!(
        (lost.rank, lost.gone, lost.exit_code()),
        (Some(0), false, 1)
    );
    assert_eq!(world.abort("another one"), lost, "the first one counts");
    world.renew().unwrap();
    world.leave().unwrap();
}

#[test]
fn all_know_where_all_are() {
    let known = ranks(3, |world| {
        let known = (world.rank(), world.local_size(), world.host().to_owned());
        world.leave().unwrap();
        known
    });
    let host = super::host_name();
    let expected: Vec<_> = (0..3).map(|rank| (rank, 3, host.clone())).collect();
    assert_eq!(known, expected);
}

/// The abort frees receives that would never end; in the next generation the same ranks use the
/// same tags, and nothing of the last one interferes.
#[test]
fn after_a_failure_all_go_on_in_a_new_generation() {
    let heard = ranks(3, |world| {
        let mut heard = Vec::new();
        for round in 0..3 {
            let (rank, size) = (world.rank(), world.size());
            let group = world.group().unwrap();
            let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
            let own = Tensor::from_slice(&[rank as i64, round]);
            let sent = group.send(&own, next, 7).unwrap();
            let came = group.receive(&[2], Kind::Int64, before, 7).unwrap();
            let came = Vec::<i64>::try_from(came.wait().unwrap()).unwrap();
            assert_eq!(came, [before as i64, round]);
            let _ = sent.wait().unwrap();
            let never = group.receive(&[2], Kind::Int64, before, 8).unwrap();
            // The failing rank fails once the others have reached the last receive.
            let fails = round as usize;
            let others = (0..size).filter(|other| *other != fails);
            if rank == fails {
                let there = |other| group.receive(&[2], Kind::Int64, other, 9).unwrap();
                for one in others.map(there).collect::<Vec<_>>() {
                    let _ = one.wait().unwrap();
                }
            } else {
                // It may not learn that this arrived before the failure.
                let _ = group.send(&own, fails, 9).unwrap().wait();
            }
            if rank == fails {
                heard.push(world.abort(&format!("round {round}")));
                assert!(never.wait().is_err());
            } else {
                heard.push(never.wait().unwrap_err());
            }
            drop(group);
            world.renew().unwrap();
            assert_eq!(world.generation(), round as u64 + 1);
        }
        world.leave().unwrap();
        heard
    });
    for (round, lost) in heard[0].iter().enumerate() {
        assert_eq!((lost.rank, lost.gone), (Some(round), false));
        let said = format!("rank {round} on `{}` failed: round {round}", lost.host);
        assert_eq!(lost.to_string(), said);
    }
    assert!(heard.iter().all(|own| *own == heard[0]), "{heard:?}");
}

/// All name the same failure, though all fail.
#[test]
fn of_several_failures_one_is_told() {
    let all_have_heard = Arc::new(Barrier::new(4));
    let heard = ranks(4, move |world| {
        let (told, heard) = mpsc::channel();
        world.on_abort(move |lost| told.send(lost.clone()).unwrap());
        let lost = world.abort(&format!("rank {} is the culprit", world.rank()));
        assert_eq!(heard.recv().unwrap(), lost);
        assert_eq!(world.lost().unwrap(), lost);
        // A process that leaves is lost to the others.
        all_have_heard.wait();
        lost
    });
    assert!(heard.iter().all(|own| *own == heard[0]), "{heard:?}");
}

/// A process that leaves silently is noticed, also right after a failure.
#[test]
fn a_process_that_goes_is_lost_to_the_others() {
    for fails_first in [false, true] {
        let heard = ranks(3, move |world| {
            if fails_first {
                world.abort("a layer failed");
                if world.rank() == 1 {
                    return None;
                }
                // If that process has already told the others, this is its loss.
                if let Err(lost) = world.renew() {
                    return Some(lost);
                }
            } else if world.rank() == 1 {
                return None;
            }
            Some(world.leave().unwrap_err())
        });
        assert!(heard[1].is_none());
        for lost in [&heard[0], &heard[2]] {
            let lost = lost.as_ref().unwrap();
            assert_eq!(
                (lost.rank, lost.gone, lost.exit_code()),
                (Some(1), true, 75),
                "{lost}"
            );
        }
    }
}

#[test]
fn who_does_not_come_is_named() {
    let times = Times {
        meeting: Duration::from_millis(700),
        ..TIMES
    };
    let port = free_port();
    let none = World::join_with(words(1, 2, port), times).unwrap_err();
    assert!(matches!(none, WorldError::Unreachable { .. }), "{none}");
    let error = World::join_with(words(0, 3, port), times).unwrap_err();
    assert!(
        matches!(&error, WorldError::Absent { ranks, .. } if *ranks == [1, 2]),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .starts_with("of 3 processes, ranks 1, 2 did not come within 0.7 s")
    );
}

/// libtorch waits forever for its reply.
#[test]
fn what_answers_and_is_no_store_is_not_waited_for() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let times = Times {
        meeting: Duration::from_millis(700),
        ..TIMES
    };
    let error = World::join_with(words(1, 2, port), times).unwrap_err();
    assert!(matches!(error, WorldError::NoStore { .. }), "{error}");
    let said = error.to_string();
    let wanted = format!(
        "what is at 127.0.0.1:{port} is no store of a run: it takes connections, and says nothing"
    );
    assert!(said.starts_with(&wanted), "{said}");
    drop(other);
}

/// Though a meeting may take an hour.
#[test]
fn a_store_that_goes_right_behind_the_meeting_is_missed_at_once() {
    let server = Store::open("127.0.0.1", 0, true, TIMES.meeting).unwrap();
    let port = server.port().unwrap();
    let meet = move |rank| {
        let words = Words {
            launcher_serves: true,
            ..words(rank, 2, port)
        };
        let hour = Duration::from_hours(1);
        super::meeting::meet(&words, ("127.0.0.1", port), "here", hour).unwrap()
    };
    let other = thread::spawn(move || drop(meet(1)));
    let met = meet(0);
    other.join().unwrap();
    met.look(Duration::from_millis(300)).unwrap();
    drop(server);
    let error = met.look(Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, WorldError::Unreachable { .. }), "{error}");
}

#[test]
fn two_runs_at_one_port_are_noticed() {
    let port = free_port();
    let first = thread::spawn(move || World::join_with(words(0, 2, port), TIMES).unwrap());
    let second = World::join_with(words(1, 2, port), TIMES).unwrap();
    let first = first.join().unwrap();
    let join = |rank, size| World::join_with(words(rank, size, port), TIMES).unwrap_err();
    let error = join(1, 2);
    assert!(
        matches!(error, WorldError::Taken { rank: 1, .. }),
        "{error}"
    );
    let error = join(1, 3);
    assert!(matches!(error, WorldError::Differ { .. }), "{error}");
    let error = join(0, 2);
    assert!(matches!(error, WorldError::Serve { .. }), "{error}");
    let left = thread::spawn(move || first.leave());
    second.leave().unwrap();
    left.join().unwrap().unwrap();
}

/// As with torchrun: no rank serves the store, and none is to blame if it is gone.
#[test]
fn the_launcher_may_serve_the_store() {
    let server = Store::open("127.0.0.1", 0, true, TIMES.meeting).unwrap();
    let port = server.port().unwrap();
    let (told, heard) = mpsc::channel();
    for rank in 0..2 {
        let told = told.clone();
        thread::spawn(move || {
            let words = Words {
                launcher_serves: true,
                restarts: 3,
                ..words(rank, 2, port)
            };
            let world = World::join_with(words, TIMES).unwrap();
            let group = world.group().unwrap();
            let own = Tensor::from_slice(&[rank as i64]);
            let sent = group.send(&own, 1 - rank, 0).unwrap();
            let came = group.receive(&[1], Kind::Int64, 1 - rank, 0).unwrap();
            assert_eq!(came.wait().unwrap().int64_value(&[0]), 1 - rank as i64);
            let _ = sent.wait().unwrap();
            let (tell, hear) = mpsc::channel();
            world.on_abort(move |lost| tell.send(lost.clone()).unwrap());
            told.send(None).unwrap();
            told.send(hear.recv().ok()).unwrap();
        });
    }
    let next = || heard.recv_timeout(Duration::from_mins(1)).unwrap();
    assert_eq!((next(), next()), (None, None));
    drop(server);
    for lost in [next(), next()] {
        let lost = lost.unwrap();
        assert_eq!((lost.rank, lost.gone), (None, true));
        let begin = format!("the launcher's store on `127.0.0.1:{port}` is lost: ");
        assert!(lost.to_string().starts_with(&begin), "{lost}");
    }
}

/// Work that all write together is finished after a failure; after a loss it would be useless.
#[test]
fn a_failure_leaves_time_for_what_is_held_and_a_loss_does_not() {
    let all_have_seen = Arc::new(Barrier::new(2));
    for held in ranks(2, move |world| {
        let control = world.control().unwrap().unwrap();
        let held = control.hold();
        let mut seen = vec![world.watch.holds()];
        world.abort("a layer failed");
        seen.push(world.watch.holds());
        world.renew().unwrap();
        seen.push(world.watch.holds());
        // Its loss would end the other one's renewal, or its held work.
        all_have_seen.wait();
        world.lose("gone");
        seen.push(world.watch.holds());
        drop(held);
        seen
    }) {
        assert_eq!(held, [true, true, true, false]);
    }
}
