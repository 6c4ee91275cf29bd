//! Transfers between GPUs of different processes, with NCCL or the simulated one.
//!
//! Unless a rank must be killed, ranks are threads of one process: each has its own world, carrier and
//! devices.

mod scale;
mod training;

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use gpipe::partitioner::{Action, CheckedSchedule, ScheduleKind, Shape, StageId};
use gpipe::world::{Launcher, Lost, Times, Words, World, WorldCarrier};

use crate::apart;
use crate::harness::{LIMIT, Test};
use crate::rounds::PLAIN;
use crate::simulated;
use scale::{Numbers, Part, Places, Task, alone, together};

const STEPS: usize = 4;

const TIMES: Times = Times {
    patience: Duration::from_secs(20),
    meeting: Duration::from_mins(1),
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("processes::values_go_from_gpu_to_gpu_as_they_are", bits),
        ("processes::a_failure_is_undone_everywhere", undone),
    ]
}

/// Tests that inspect the simulated library, or need a GPU per process.
pub(crate) fn simulated_tests() -> Vec<Test> {
    vec![
        (
            "processes::training_over_two_processes_gives_the_bits_of_one",
            training::over_two,
        ),
        ("processes::an_abort_frees_blocked_transfers", blocked),
        ("processes::a_step_that_counts_has_all_it_needs", counted),
        ("processes::a_gpu_of_two_devices_has_no_channel", shared),
        ("processes::what_fails_in_the_background_is_told", told),
        (
            "processes::a_process_that_dies_is_named_by_the_others",
            died,
        ),
        (
            "processes::nccl_that_is_missing_is_told_where_it_is_asked_for",
            missing,
        ),
    ]
}

/// Parts that these tests run in separate processes.
pub(crate) const PARTS: [Test; 2] = [
    ("processes::rank", as_rank),
    ("processes::without_nccl", without_nccl),
];

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn words(rank: usize, size: usize, port: u16) -> Words {
    Words {
        rank,
        size,
        local_rank: rank,
        local_size: None,
        master: Some(("127.0.0.1".to_owned(), port)),
        launcher_serves: false,
        run: "test".to_owned(),
        restarts: 0,
        launcher: Launcher::Variables,
    }
}

/// Runs `body` as each of `size` ranks, and fails instead of hanging.
fn ranks<T: Send + 'static>(
    size: usize,
    body: impl Fn(World) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let port = free_port();
    let (done, results) = mpsc::channel();
    for rank in 0..size {
        let (body, done) = (body.clone(), done.clone());
        thread::spawn(move || {
            let run = || body(World::join_with(words(rank, size, port), TIMES).unwrap());
            let _ = done.send((rank, catch_unwind(AssertUnwindSafe(run))));
        });
    }
    drop(done);
    let mut all: Vec<_> = (0..size)
        .map(|_| results.recv_timeout(LIMIT / 2).unwrap())
        // A rank's panic fails the test.
        .map(|(rank, result)| (rank, result.unwrap_or_else(|why| resume_unwind(why))))
        .collect();
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, result)| result).collect()
}

fn generated(kind: ScheduleKind, devices: usize, micros: usize) -> CheckedSchedule {
    let shape = Shape::new(devices, micros).with_chunks(kind.default_chunks());
    kind.generate(shape).unwrap()
}

/// Leaves once all are done.
fn leave(world: Arc<World>, part: Part) -> Result<(), Lost> {
    drop(part);
    Arc::into_inner(world).unwrap().leave()
}

fn steps(size: usize, schedule: &CheckedSchedule, places: &Places) -> Vec<Vec<Numbers>> {
    let (schedule, places) = (schedule.clone(), places.clone());
    ranks(size, move |world| {
        let world = Arc::new(world);
        let mut part = Part::new(&world, &schedule, &places);
        let step = |_| part.step(Task::default()).unwrap();
        let steps = (0..STEPS).map(step).collect();
        leave(world, part).unwrap();
        steps
    })
}

fn same(all: &[Vec<Numbers>], expected: Vec<Numbers>) {
    for (step, expected) in expected.into_iter().enumerate() {
        let own = together(all.iter().map(|steps| steps[step].clone()));
        assert_eq!(own, together(std::iter::once(expected)), "step {step}");
    }
}

/// Steps of two processes, and of one process on the same GPUs.
pub(crate) fn some_steps(by_nccl: bool) -> Vec<Numbers> {
    let schedule = generated(ScheduleKind::OneFOneB, 2, 4);
    let places = Places {
        by_nccl,
        ..Places::new(&[0, 1])
    };
    let all = steps(2, &schedule, &places);
    all.into_iter()
        .flatten()
        .chain(alone(&schedule, STEPS))
        .collect()
}

fn bits() {
    for (kind, rank_of) in [
        (ScheduleKind::GPipe, vec![0, 1]),
        (ScheduleKind::OneFOneB, vec![0, 1, 2]),
        (ScheduleKind::OneFOneB, vec![0, 1, 0, 1]),
        (ScheduleKind::Interleaved1F1B, vec![0, 1]),
        (ScheduleKind::ForwardOnly, vec![1, 0, 2]),
    ] {
        let schedule = generated(kind, rank_of.len(), 4);
        let size = rank_of.iter().max().unwrap() + 1;
        let all = steps(size, &schedule, &Places::new(&rank_of));
        same(&all, alone(&schedule, STEPS));
        if simulated::has_simulated_devices() {
            assert!(simulated::sim_transfers_done() > 0, "nothing went by NCCL");
        }
    }
}

fn undone() {
    let schedule = generated(ScheduleKind::OneFOneB, 3, 4);
    let actions: Vec<Action> = ["0F0", "1F3", "2B1", "1B0", "0B3"]
        .iter()
        .map(|action| action.parse().unwrap())
        .collect();
    let expected = alone(&schedule, STEPS);
    let own = actions.clone();
    let all = ranks(3, move |world| {
        let world = Arc::new(world);
        let mut part = Part::new(&world, &schedule, &Places::new(&[0, 1, 2]));
        let fails = |action: &Action| Task {
            fault: Some(*action),
            ..Task::default()
        };
        let errors = own
            .iter()
            .map(|action| part.step(fails(action)).unwrap_err());
        let errors: Vec<_> = errors.map(|error| error.to_string()).collect();
        let good = (0..STEPS).map(|_| part.step(Task::default()));
        let good: Vec<_> = good
            .map(|step| step.unwrap_or_else(|error| panic!("{error}, behind {errors:#?}")))
            .collect();
        let host = world.host().to_owned();
        leave(world, part).unwrap();
        (errors, good, host)
    });
    for (number, action) in actions.iter().enumerate() {
        let failed = action.stage.index();
        for (rank, (errors, _, host)) in all.iter().enumerate() {
            let own = &all[failed].0[number];
            assert!(own.contains("as asked"), "{own}");
            if rank != failed {
                assert_eq!(
                    errors[number],
                    format!("rank {failed}: {own} (on `{host}`)")
                );
            }
        }
    }
    let good: Vec<_> = all.into_iter().map(|(_, good, _)| good).collect();
    same(&good, expected);
}

/// The other ranks' transfers wait for a slow GPU when rank 1 fails. If rank 1's own transfers wait for it as
/// well, aborting one channel waits for aborting the other.
fn blocked() {
    let schedule = generated(ScheduleKind::OneFOneB, 3, 4);
    let expected = alone(&schedule, STEPS);
    let own = schedule.clone();
    let all = ranks(3, move |world| {
        let world = Arc::new(world);
        let mut part = Part::new(&world, &own, &Places::new(&[0, 1, 2]));
        let mut error = |slow: usize, fault: &str| {
            let task = Task {
                fault: Some(fault.parse().unwrap()),
                slow: Some((StageId(slow), 200)),
                ahead: true,
                dies: None,
            };
            part.step(task).unwrap_err().to_string()
        };
        let errors = [error(0, "1F1"), error(2, "1B1"), error(0, "1F1")];
        let good = (0..STEPS)
            .map(|_| part.step(Task::default()).unwrap())
            .collect();
        leave(world, part).unwrap();
        (errors, good)
    });
    assert!(simulated::sim_transfers_freed() > 0, "none was blocked");
    let (errors, good): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    for errors in errors {
        assert!(errors.iter().all(|error| error.contains("as asked")));
    }
    same(&good, expected);
}

/// The last stage's GPU is slow, and its transfers complete long after the hosts have finished the step. The
/// next step fails at once and aborts all transfers in flight.
fn counted() {
    let schedule = generated(ScheduleKind::OneFOneB, 3, 4);
    let (_, expected) = alone(&schedule, 1).remove(0);
    let all = ranks(3, move |world| {
        let world = Arc::new(world);
        let mut part = Part::new(&world, &schedule, &Places::new(&[0, 1, 2]));
        let late = Task {
            slow: Some((StageId(2), 100)),
            ahead: true,
            ..Task::default()
        };
        drop(part.ahead(late).unwrap());
        let fails = Task {
            fault: Some("0F0".parse().unwrap()),
            ..late
        };
        part.ahead(fails).unwrap_err();
        let sums = part.sums().unwrap();
        leave(world, part).unwrap();
        sums
    });
    let all: Vec<_> = all.into_iter().flatten().collect();
    assert_eq!(all, expected);
}

/// Two devices on one GPU, and GPUs that are the same one.
fn shared() {
    let schedule = generated(ScheduleKind::OneFOneB, 4, 4);
    let expected = alone(&schedule, STEPS);
    for (rank_of, gpus) in [
        (vec![0, 0, 1, 1], vec![0, 0, 1, 1]),
        (vec![0, 1, 0, 1], vec![2; 4]),
    ] {
        let places = Places {
            rank_of,
            gpus,
            by_nccl: true,
        };
        same(&steps(2, &schedule, &places), expected.clone());
    }
    let one = Places {
        rank_of: vec![0, 1],
        gpus: vec![3, 3],
        by_nccl: true,
    };
    let schedule = generated(ScheduleKind::OneFOneB, 2, 4);
    same(&steps(2, &schedule, &one), alone(&schedule, STEPS));
    assert_eq!(simulated::sim_transfers_done(), 0, "by NCCL");
}

/// The last transfer of a channel fails like a network: NCCL reports it only when asked, and the GPUs wait
/// forever.
fn told() {
    let schedule = generated(ScheduleKind::OneFOneB, 2, 1);
    let expected = alone(&schedule, 1);
    let all = ranks(2, move |world| {
        let world = Arc::new(world);
        let mut part = Part::new(&world, &schedule, &Places::new(&[0, 1]));
        let good = part.step(Task::default()).unwrap();
        if world.rank() == 0 {
            simulated::sim_transfers_fail(1);
        }
        let mut error = None;
        for _ in 0..2 {
            error = error.or(part.step(Task::default()).err());
        }
        leave(world, part).unwrap();
        (vec![good], error.unwrap().to_string())
    });
    let (good, errors): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    same(&good, expected);
    // A stage that was reading a value when its transfer was aborted has a different error.
    let named = |error: &&String| error.contains("remote process exited");
    let told: Vec<_> = errors.iter().filter(named).collect();
    // Reported by whoever notices first: the channels' watcher, the sender or the receiver.
    let right = |error: &&String| {
        let by = ["in rank ", "for rank ", "what rank "];
        by.iter().any(|words| error.contains(words))
    };
    assert!(!told.is_empty() && told.iter().all(right), "{errors:?}");
}

/// One of three processes, the second of which dies in its third step, together with its GPU's pending
/// transfers, which the third one's stage waits for.
fn as_rank() {
    let world = Arc::new(World::from_env().unwrap());
    let schedule = generated(ScheduleKind::OneFOneB, 3, 4);
    let mut part = Part::new(&world, &schedule, &Places::new(&[0, 1, 2]));
    for _ in 0..2 {
        part.step(Task::default()).unwrap();
    }
    let dies = Task {
        dies: Some("1F2".parse().unwrap()),
        slow: Some((StageId(1), 50)),
        ..Task::default()
    };
    let error = part.step(dies).unwrap_err();
    println!("told: {error}");
    drop(part);
}

fn died() {
    let port = free_port().to_string();
    let run = |rank: usize| {
        let rank = rank.to_string();
        let variables = [
            (apart::VARIABLE, PLAIN),
            ("RANK", &rank),
            ("LOCAL_RANK", &rank),
            ("WORLD_SIZE", "3"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
        ];
        apart::run_with(&variables, &["--one", "processes::rank"], LIMIT / 10).unwrap()
    };
    let all: Vec<_> = thread::scope(|scope| {
        let run = &run;
        let all: Vec<_> = (0..3).map(|rank| scope.spawn(move || run(rank))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for (rank, ended) in all.iter().enumerate() {
        if rank == 1 {
            assert_eq!(ended.code(), None, "{}", ended.why());
            continue;
        }
        let told = ended
            .output
            .contains("told: rank 1 is lost: its connection to rank ");
        assert!(ended.code() == Some(0) && told, "{}", ended.why());
    }
}

fn missing() {
    let variables = [
        (apart::VARIABLE, PLAIN),
        ("GPIPE_NCCL", "/nowhere/libnccl.so.2"),
    ];
    let ended = apart::run_with(&variables, &["--one", "processes::without_nccl"], LIMIT / 4);
    let ended = ended.unwrap();
    assert_eq!(ended.code(), Some(0), "{}", ended.why());
}

/// An explicit request for NCCL is refused; without it NCCL is not needed.
fn without_nccl() {
    let schedule = generated(ScheduleKind::OneFOneB, 2, 4);
    let expected = alone(&schedule, 1);
    let all = ranks(2, move |world| {
        let world = Arc::new(world);
        let gpus = [Some(0), Some(1)];
        let refused =
            WorldCarrier::<gpipe::world::Parcel>::connect_gpus(&world, vec![0, 1], 1, &gpus);
        let why = refused.unwrap_err().to_string();
        let named = why.contains("NCCL cannot be loaded") && why.contains("/nowhere/libnccl.so.2");
        assert!(named, "{why}");
        world.renew().unwrap();
        let places = Places {
            by_nccl: false,
            ..Places::new(&[0, 1])
        };
        let mut part = Part::new(&world, &schedule, &places);
        let step = part.step(Task::default()).unwrap();
        leave(world, part).unwrap();
        vec![step]
    });
    same(&all, expected);
}
