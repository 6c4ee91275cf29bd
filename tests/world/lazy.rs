//! Connections that gloo makes on first use: it blocks the requesting thread until the other rank requests
//! it, too. Regression test: ranks that first receive from the previous one waited for each other around the
//! ring.

use super::job::Job;

#[test]
fn ranks_that_connect_when_they_first_send_do_not_wait_in_a_ring() {
    let lazily = ["env", "TORCH_GLOO_LAZY_INIT=1", "GPIPE_SHARED_MEMORY=0"];
    for size in [3, 8] {
        for ended in Job::start_within(&lazily, "tags", size).all() {
            assert_eq!(ended.code(), Some(0), "{size}: {}", ended.printed);
        }
    }
}
