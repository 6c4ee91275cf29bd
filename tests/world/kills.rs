//! How long it takes until the last process notices, and until it has ended, which takes libtorch a while.
//! `WORLD_KILLS=50 cargo test --test world kills -- --nocapture` prints the times; without the variable there
//! are two kills.

use std::time::{Duration, SystemTime};

use super::failures::all_name;
use super::job::Job;
use super::parts::PATIENCE;

#[test]
fn kills_at_any_moment() {
    let kills: u64 = std::env::var("WORLD_KILLS").map_or(2, |kills| kills.parse().unwrap());
    let (mut heard, mut ended) = (Vec::new(), Vec::new());
    for kill in 0..kills {
        let victim = (kill % 4) as usize;
        let mut job = Job::start("ring", 4, &[(PATIENCE, "120000")]);
        job.wait_for("ready");
        std::thread::sleep(Duration::from_micros(kill * 7919 % 5000));
        let killed = job.ranks[victim].kill();
        let ends = job.others(victim);
        all_name(&ends, victim, "is lost");
        let after = |at: SystemTime| at.duration_since(killed).unwrap().as_secs_f64() * 1e3;
        let last = |times: Vec<f64>| times.into_iter().fold(0.0, f64::max);
        heard.push(last(ends.iter().map(|end| after(end.heard())).collect()));
        ended.push(last(ends.iter().map(|end| after(end.at)).collect()));
    }
    println!(
        "{kills} kills of one of four, until the last of the others\nknows: {}",
        told(heard)
    );
    println!("has ended: {}", told(ended));
}

pub(crate) fn told(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    format!(
        "{:.1} ms at least, {:.1} median, {:.1} in nine of ten, {:.1} at most",
        at(0.0),
        at(0.5),
        at(0.9),
        at(1.0)
    )
}
