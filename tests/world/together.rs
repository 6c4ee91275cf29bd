//! Processes that work together, and end together.

use super::job::Job;

#[test]
fn messages_of_different_tags_come_in_any_order() {
    let mut job = Job::start("tags", 3, &[]);
    for ended in job.all() {
        assert_eq!(ended.code(), Some(0), "{}", ended.printed);
        assert!(ended.printed.contains("all tags came"), "{}", ended.printed);
        // No process closed a resource still in use by another: c10d would print a stack trace.
        assert!(!ended.printed.contains("frame #"), "{}", ended.printed);
        assert!(!ended.printed.contains("c10d"), "{}", ended.printed);
    }
}
