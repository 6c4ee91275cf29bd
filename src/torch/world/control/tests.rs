use crate::testing::ranks;

/// Every rank sends to every other, on several topics, in a different order than they are read; in
/// the end the store is as before.
#[test]
fn messages_come_by_topic_and_leave_nothing_in_the_store() {
    let keys = ranks(3, |world| {
        let control = world.control().unwrap().unwrap();
        let (rank, size) = (world.rank(), world.size());
        let mut keys = Vec::new();
        for round in 0..4 {
            for to in (0..size).filter(|to| *to != rank) {
                for topic in ["a", "b\u{e4}", "c"] {
                    let text = format!("{rank} to {to} of {topic} in {round}");
                    control.send(to, &format!("{topic}/{round}"), text);
                }
            }
            for topic in ["c", "a", "b\u{e4}"] {
                let mut from: Vec<_> = (1..size)
                    .map(|_| control.receive(&format!("{topic}/{round}")).unwrap())
                    .collect();
                from.sort();
                let others = (0..size).filter(|from| *from != rank);
                let expected: Vec<_> = others
                    .map(|from| (from, format!("{from} to {rank} of {topic} in {round}")))
                    .collect();
                assert_eq!(from, expected);
            }
            // All messages have been read: a listener removes a message before it delivers it.
            for to in (0..size).filter(|to| *to != rank) {
                control.send(to, "done", String::new());
            }
            for _ in 1..size {
                control.receive("done").unwrap();
            }
            keys.push(world.keys());
        }
        assert!(control.inbox.come.lock().is_empty());
        world.leave().unwrap();
        keys
    });
    // Some messages may be on their way at any one moment, but they do not add up.
    for keys in keys {
        let (first, last) = (keys[0], keys[3]);
        assert!((first - last).abs() < 10, "{keys:?}");
    }
}

#[test]
fn a_failure_that_all_survive_takes_no_message() {
    ranks(2, |world| {
        let control = world.control().unwrap().unwrap();
        let other = 1 - world.rank();
        if world.rank() == 0 {
            world.abort("a layer failed");
        }
        // Both know of the end, and one continues.
        let (told, heard) = std::sync::mpsc::channel();
        world.on_abort(move |lost| told.send(lost.clone()).unwrap());
        assert!(!heard.recv().unwrap().gone);
        if world.rank() == 1 {
            world.renew().unwrap();
        }
        control.send(other, "after", "still here".to_owned());
        assert_eq!(control.receive("after").unwrap().1, "still here");
        if world.rank() == 0 {
            world.renew().unwrap();
        }
        world.leave().unwrap();
    });
}

/// Also where the world has ended by a failure before, and nobody has renewed it.
#[test]
fn a_loss_frees_whoever_waits() {
    for failed in [false, true] {
        let heard = ranks(3, move |world| {
            let control = world.control().unwrap().unwrap();
            if failed {
                world.abort("a layer failed");
            }
            if world.rank() == 1 {
                return None;
            }
            let lost = control.receive("never").unwrap_err();
            assert_eq!(world.renew(), Err(lost.clone()));
            Some((lost.rank, lost.gone))
        });
        assert_eq!(heard, [Some((Some(1), true)), None, Some((Some(1), true))]);
    }
}
