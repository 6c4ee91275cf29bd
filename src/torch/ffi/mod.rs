//! The only place with `unsafe`: safe wrappers around the C++ shim (`shim/*.cpp`).
//!
//! Safety rests on two facts. A tch `Tensor` owns a heap-allocated `at::Tensor`, so its pointer may
//! be lent to the shim for the duration of a call, and a pointer that the shim returns from `new
//! at::Tensor` may be given to tch to own. And every shim function catches all C++ exceptions,
//! returning non-zero and leaving a message (without back-trace) in a thread-local that [`error`]
//! reads on the same thread.
//!
//! Scopes ([`SavedTensorScope`], [`RawScope`], [`Autocast`], [`RandomScope`]) restore their
//! thread's previous state in `drop`. They are always local variables: a leaked scope would leave
//! its thread with a pointer to memory that may be freed.
//!
//! # Assumptions about libtorch 2.11
//!
//! `setup/lib.rs` refuses every other version. The shim's assumptions beyond libtorch's documented
//! interface, and the tests that fail when they no longer hold:
//!
//! | assumption | where | held by |
//! |---|---|---|
//! | the order of the first 16 virtual functions of `CUDAAllocator`, a class whose header needs CUDA's | `shim/cuda_allocator.h` | `memory/tests.rs`: `the_class_of_the_cuda_allocator_begins_as_it_did`, `no_virtual_call_of_the_shim_was_compiled_into_the_end_of_the_process` |
//! | mangled names and arguments of `at::cuda::CUDAGraph`, and that it has fewer than 1024 bytes | `shim/cuda_graphs.cpp` | `ffi/cuda_graphs.rs`: `the_class_of_cuda_graphs_is_declared_as_it_was`; on a GPU `tests/cuda/graphs.rs` |
//! | nothing else uses the dispatch key `TESTING_ONLY_GenericMode` | `shim/random.cpp` | `tests/numbers/randomness.rs` |
//! | nor `Fake`, which comes below autograd | `shim/onednn.cpp` | `tests/numbers/kernels.rs` |
//! | nor `TESTING_ONLY_GenericWrapper` | `shim/weightless.cpp` | `tests/library/zoo/weightless.rs` |
//! | the autograd engine may be replaced by one that adds hooks for saved tensors (`set_default_engine_stub`) | `shim/saved_tensors.cpp` | `tests/memory/counted.rs`, `tests/cuda/offload.rs` |
//! | autograd's engine runs nodes in order of their sequence numbers and adds gradients as `InputBuffer` does | `shim/walk.cpp`, `shim/split.cpp` | `tests/numbers/joint_backward.rs`, `tests/numbers/split_backward.rs` |
//! | a node of libtorch's own formulas has a type in `torch::autograd::generated` and records no graph | `shim/walk.cpp` | `tests/numbers/joint_backward.rs`: `formulas_of_many_kinds` |
//! | oneDNN behind `mkldnn_matmul` and `mkldnn_convolution_backward_stub`, whose bits depend on shapes and layouts alone | `shim/onednn.cpp` | `tests/numbers/kernels.rs`, `tests/parity/alignment.rs` |
//! | a storage remembers its allocator, and the context of its data pointer is the data | `shim/memory.cpp` | `memory/tests.rs`, `tests/memory/counted.rs` |
//! | MKL's kernels do not depend on addresses in the mode `AUTO` (`mkl_serv_cbwr_set`), which is set before MKL is first used | `shim/runtime.cpp` | `tests/parity/alignment.rs` |
//! | the fused optimizer kernels skip an update whose `found_inf` is 1 | `shim/optim.cpp` | `tests/cuda/skipped.rs`, `optim/state/tests.rs` |
//! | `ProcessGroupGloo` has 488 bytes and names gloo's types only behind pointers: gloo's headers are not in the wheel | `shim/world.cpp`, `shim/gloo` | a `static_assert` there; `ffi/world/tests.rs` |
//! | NCCL's C interface of version 2.14, `ncclConfig_t` as long as it was then: no header of it is there | `shim/nccl.cpp` | a `static_assert` there; on a GPU nothing yet |
//! | libtorch warns of every host sync when it is asked to | `shim/cuda_graphs.cpp`, `shim/runtime.cpp` | on a GPU `tests/cuda/steps.rs`, `tests/cuda/graphs.rs` |
#![allow(unsafe_code)]

mod aliases;
mod autocast;
mod cuda_graphs;
mod driver;
mod gradients;
mod graph;
mod lost;
mod memory;
mod nccl;
mod onednn;
mod operators;
mod optim;
mod pool;
#[cfg(test)]
mod products;
mod random;
mod runtime;
mod saved_tensors;
mod shared_memory;
mod streams;
mod weightless;
mod world;

pub(crate) use aliases::*;
pub use autocast::*;
pub(crate) use cuda_graphs::*;
pub(crate) use driver::*;
pub(crate) use gradients::*;
pub(crate) use graph::*;
pub(crate) use lost::*;
pub(crate) use memory::*;
pub(crate) use nccl::*;
pub(crate) use onednn::*;
pub use operators::*;
pub(crate) use optim::*;
pub use pool::*;
pub use random::*;
pub use runtime::*;
pub(crate) use saved_tensors::*;
pub(crate) use shared_memory::*;
pub(crate) use streams::*;
pub(crate) use weightless::*;
pub(crate) use world::*;

use std::ffi::{CStr, c_char, c_int, c_void};

use tch::Tensor;

use super::error::TorchError;

type Result<T> = std::result::Result<T, TorchError>;
type TensorPtr = *mut c_void;

unsafe extern "C" {
    fn gp_error() -> *const c_char;
}

/// The message of this thread's last failed call.
fn error() -> TorchError {
    // SAFETY: `gp_error` returns a NUL-terminated string owned by a thread-local
    // that only the next failing call on this thread changes; it is copied here.
    let text = unsafe { CStr::from_ptr(gp_error()) };
    TorchError::new(text.to_string_lossy())
}

fn check(status: c_int) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(error()) }
}

/// Converts a number for the shim. One that is too large becomes the largest, which no device or
/// count has, so that libtorch refuses it.
fn c_number(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn lend(tensor: &Tensor) -> TensorPtr {
    tensor.as_ptr().cast_mut().cast()
}

fn lend_all(tensors: &[Tensor]) -> Vec<TensorPtr> {
    tensors.iter().map(lend).collect()
}

/// Takes ownership of a pointer returned by the shim.
///
/// # Safety
/// `pointer` must be null or come from `new at::Tensor` and be owned by nobody.
unsafe fn own(pointer: TensorPtr) -> Option<Tensor> {
    // SAFETY: the caller's promise is exactly what `from_ptr` asks for.
    (!pointer.is_null()).then(|| unsafe { Tensor::from_ptr(pointer.cast()) })
}

fn same_length(lists: &[&[Tensor]]) -> Result<i64> {
    let count = lists.first().map_or(0, |list| list.len());
    if lists.iter().all(|list| list.len() == count) {
        Ok(count as i64)
    } else {
        let lengths: Vec<_> = lists.iter().map(|list| list.len()).collect();
        Err(TorchError::new(format!(
            "tensor lists of different lengths: {lengths:?}"
        )))
    }
}
