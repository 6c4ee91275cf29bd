//! How long it takes until the last one knows. `WORLD_KILLS=50 cargo test --test world kills --
//! --nocapture` prints the times; without the variable there are two kills.

use std::time::{Duration, Instant};

use super::failures::all_name;
use super::job::Job;
use super::parts::PATIENCE;

#[test]
fn kills_at_any_moment() {
    let kills: u64 = std::env::var("WORLD_KILLS").map_or(2, |kills| kills.parse().unwrap());
    let mut times = Vec::new();
    for kill in 0..kills {
        let victim = (kill % 4) as usize;
        let mut job = Job::start("ring", 4, &[(PATIENCE, "120000")]);
        job.wait_for("ready");
        std::thread::sleep(Duration::from_micros(kill * 7919 % 5000));
        let killed = Instant::now();
        job.ranks[victim].signal("-KILL");
        let ends = job.others(victim);
        all_name(&ends, victim, "is lost");
        let last = ends.iter().map(|ended| ended.at - killed).max().unwrap();
        times.push(last.as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "from a kill to the exit of the last of three others, {kills} kills: {:.0} ms at least, \
         {:.0} median, {:.0} in nine of ten, {:.0} at most",
        at(0.0),
        at(0.5),
        at(0.9),
        at(1.0)
    );
}
