//! Processes that work together, and end together.

use super::job::Job;

#[test]
fn messages_of_different_tags_come_in_any_order() {
    let mut job = Job::start("tags", 3, &[]);
    for ended in job.all() {
        assert_eq!(ended.code(), Some(0), "{}", ended.printed);
        assert!(ended.printed.contains("all tags came"), "{}", ended.printed);
        // Nobody has closed what another one still used: c10d would have a stack trace to show.
        assert!(!ended.printed.contains("frame #"), "{}", ended.printed);
        assert!(!ended.printed.contains("c10d"), "{}", ended.printed);
    }
}
