//! Calls whose omission no test can notice, and why.

/// The called function, a part of the file's path and of the line's text, and why.
pub(super) const EXPLAINED: [(&str, &str, &str, &str); 12] = [
    (
        "record",
        "device_times.rs",
        "cuda::record(cuda::current(*device)?)?",
        "the host waits for the event at once: any moment is an origin of times",
    ),
    (
        "record",
        "device_streams.rs",
        "let begin = cuda::record(accelerator.main)?;",
        "its time is known by the origin before it: any moment is an origin of times",
    ),
    (
        "record",
        "channel.rs",
        "let there = cuda::record(own.stream)?;",
        "the first transfer is waited for only so that what is wrong with a channel is told early",
    ),
    ("finish", "device_streams.rs", SYNCHRONIZE, GRAPHS),
    ("record", "device_streams.rs", SYNCHRONIZE, GRAPHS),
    ("finish", "offload.rs", WAIT_OFFLOADED, SAVED),
    ("record", "offload.rs", WAIT_OFFLOADED, SAVED),
    ("finish", "lost.rs", ANSWERS, LOST),
    ("record", "lost.rs", ANSWERS, LOST),
    (
        "used_by",
        "offload.rs",
        "cuda::used_by(&tensor, offloading)?;",
        "the memory is held until the main stream, of which the allocator knows, has waited for the copy",
    ),
    ("record", "offload.rs", JOIN_PREFETCHES, STAGING),
    ("wait", "offload.rs", JOIN_PREFETCHES, STAGING),
];

const SYNCHRONIZE: &str = "cuda::finish(&cuda::record(accelerator.main)?)";
const GRAPHS: &str = "before graphs are dropped; CUDA keeps a graph until it has run, and libtorch \
                      gives its memory back by `cudaFree`, which waits for the device";

const WAIT_OFFLOADED: &str = "cuda::finish(&cuda::record(accelerator.offloading()?)?)";
const SAVED: &str = "the host copies each parameter before what is offloaded of it, and so waits \
                     for the main stream, which has waited for the copies to the host";

const ANSWERS: &str = "cuda::finish(&cuda::point(stream)?)";
const LOST: &str = "a lost device refuses both calls, behind whatever the event is recorded: either \
                    one tells that it is lost";

const JOIN_PREFETCHES: &str = "cuda::wait(accelerator.main, &cuda::record(prefetching)?)";
const STAGING: &str = "the memory is kept until the update is finished, by the same streams; only \
                       where the pipeline is dropped before that is it free for others";
