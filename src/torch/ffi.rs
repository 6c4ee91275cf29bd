//! The one file with `unsafe`: safe wrappers around the C++ shim (`shim/*.cpp`).
//!
//! Two facts carry all of it. A tch `Tensor` owns a heap-allocated
//! `at::Tensor`, so its pointer may be lent to the shim for the length of a
//! call, and a pointer the shim returns from `new at::Tensor` may be given to
//! tch to own. And every shim function catches all C++ exceptions, returning
//! non-zero and leaving a message (without back-trace) in a thread-local that
//! [`error`] reads on the same thread.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};

use tch::{Device, Tensor};

use super::error::TorchError;

type Result<T> = std::result::Result<T, TorchError>;
type TensorPtr = *mut c_void;

unsafe extern "C" {
    fn gp_error() -> *const c_char;
    fn gp_version() -> *const c_char;
    fn gp_set_threads(count: c_int) -> c_int;
    fn gp_threads(out: *mut c_int) -> c_int;
    fn gp_load_cuda(path: *const c_char) -> c_int;
    fn gp_cuda_devices(out: *mut c_int) -> c_int;
    fn gp_set_cuda_device(index: c_int) -> c_int;

    fn gp_random_open(seed: u64, out: *mut *mut c_void) -> c_int;
    fn gp_random_close(scope: *mut c_void);

    fn gp_graph_new(out: *mut *mut c_void) -> c_int;
    fn gp_graph_free(graph: *mut c_void);
    fn gp_graph_input(
        graph: *mut c_void,
        received: TensorPtr,
        out: *mut TensorPtr,
        sink: *mut i64,
    ) -> c_int;
    fn gp_graph_mark(graph: *mut c_void, output: TensorPtr, layer: i64) -> c_int;
    fn gp_graph_root(graph: *mut c_void, output: TensorPtr) -> c_int;
    fn gp_graph_loss(graph: *mut c_void, loss: TensorPtr, weight: f64) -> c_int;
    fn gp_graph_backward(graph: *mut c_void, grads: *mut TensorPtr, count: i64) -> c_int;
    fn gp_graph_take_grad(graph: *mut c_void, sink: i64, out: *mut TensorPtr) -> c_int;
    fn gp_graph_layer(graph: *const c_void) -> i64;
    fn gp_take_grad(parameter: TensorPtr, out: *mut TensorPtr) -> c_int;
    fn gp_set_grad(parameter: TensorPtr, grad: TensorPtr) -> c_int;

    fn gp_fused_adamw(
        parameters: *mut TensorPtr,
        grads: *mut TensorPtr,
        means: *mut TensorPtr,
        squares: *mut TensorPtr,
        steps: *mut TensorPtr,
        count: i64,
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
    ) -> c_int;
    fn gp_fused_sgd(
        parameters: *mut TensorPtr,
        grads: *mut TensorPtr,
        buffers: *mut TensorPtr,
        count: i64,
        lr: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: c_int,
        first: c_int,
    ) -> c_int;
    fn gp_scale(tensors: *mut TensorPtr, count: i64, factor: f64) -> c_int;
    fn gp_add(tensors: *mut TensorPtr, others: *mut TensorPtr, count: i64) -> c_int;
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

fn lend(tensor: &Tensor) -> TensorPtr {
    tensor.as_ptr().cast_mut().cast()
}

fn lend_all(tensors: &[Tensor]) -> Vec<TensorPtr> {
    tensors.iter().map(lend).collect()
}

/// Takes ownership of what a shim function returned.
///
/// # Safety
/// `pointer` must be null or come from `new at::Tensor` and be owned by nobody.
unsafe fn own(pointer: TensorPtr) -> Option<Tensor> {
    // SAFETY: the caller's promise is exactly what `from_ptr` asks for.
    (!pointer.is_null()).then(|| unsafe { Tensor::from_ptr(pointer.cast()) })
}

/// The version of the libtorch that is loaded, such as `2.11.0`.
pub(crate) fn version() -> String {
    // SAFETY: a string literal of the shim.
    unsafe { CStr::from_ptr(gp_version()) }
        .to_string_lossy()
        .into_owned()
}

/// Sets the intra-op threads of the calling thread.
pub(crate) fn set_threads(count: usize) -> Result<()> {
    let count = c_int::try_from(count).unwrap_or(c_int::MAX);
    // SAFETY: plain values in, nothing out.
    check(unsafe { gp_set_threads(count) })
}

/// Intra-op threads of the calling thread.
pub(crate) fn threads() -> Result<usize> {
    let mut out = 0;
    // SAFETY: `out` lives through the call.
    check(unsafe { gp_threads(&raw mut out) })?;
    Ok(usize::try_from(out).unwrap_or(1))
}

/// Loads `libtorch_cuda` from `path` into the process.
pub(crate) fn load_cuda(path: &Path) -> Result<()> {
    let path = CString::new(path.to_string_lossy().as_bytes())
        .map_err(|_| TorchError::new("the path of libtorch_cuda holds a NUL byte"))?;
    // SAFETY: a NUL-terminated string that lives through the call.
    check(unsafe { gp_load_cuda(path.as_ptr()) })
}

/// How many CUDA devices libtorch can use; 0 where `libtorch_cuda` is not loaded.
pub(crate) fn cuda_devices() -> Result<usize> {
    let mut out = 0;
    // SAFETY: `out` lives through the call.
    check(unsafe { gp_cuda_devices(&raw mut out) })?;
    Ok(usize::try_from(out).unwrap_or(0))
}

/// Makes a CUDA device current for the calling thread; nothing for the CPU.
pub(crate) fn set_current_device(device: Device) -> Result<()> {
    let Device::Cuda(index) = device else {
        return Ok(());
    };
    let index = c_int::try_from(index).unwrap_or(c_int::MAX);
    // SAFETY: plain values in, nothing out.
    check(unsafe { gp_set_cuda_device(index) })
}

/// While it lives, everything that this thread draws comes from generators
/// seeded with its seed (see `shim/random.cpp`). Scopes nest; raw pointers make
/// the type stay on the thread that opened it.
#[derive(Debug)]
pub(crate) struct RandomScope {
    pointer: NonNull<c_void>,
}

impl RandomScope {
    pub(crate) fn open(seed: u64) -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds an owned scope after a successful call.
        check(unsafe { gp_random_open(seed, &raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no random scope"))?;
        Ok(Self { pointer })
    }
}

impl Drop for RandomScope {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self`, freed once, on the thread that
        // opened the scope, since `self` is not `Send`.
        unsafe { gp_random_close(self.pointer.as_ptr()) }
    }
}

/// One stage's share of one micro-batch's autograd graph (see `shim/graph.cpp`).
#[derive(Debug)]
pub(crate) struct Graph {
    pointer: NonNull<c_void>,
}

/// Where the gradient of a received tensor will arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sink(i64);

impl Graph {
    pub(crate) fn new() -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds an owned graph after a successful call.
        check(unsafe { gp_graph_new(&raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no graph"))?;
        Ok(Self { pointer })
    }

    /// The tensor that layers see in place of `received`, and where its gradient
    /// arrives; no sink for types that cannot have one.
    pub(crate) fn input(&mut self, received: &Tensor) -> Result<(Tensor, Option<Sink>)> {
        let (mut out, mut sink) = (ptr::null_mut(), -1);
        // SAFETY: graph and tensor are alive; `out` is a new tensor on success.
        let tensor = unsafe {
            check(gp_graph_input(
                self.pointer.as_ptr(),
                lend(received),
                &raw mut out,
                &raw mut sink,
            ))?;
            own(out)
        }
        .ok_or_else(|| TorchError::new("an input gave no tensor"))?;
        Ok((tensor, (sink >= 0).then_some(Sink(sink))))
    }

    /// Notes that layer number `layer` computed `output`, for [`Graph::layer`].
    pub(crate) fn mark(&mut self, output: &Tensor, layer: usize) -> Result<()> {
        // SAFETY: graph and tensor are alive through the call.
        check(unsafe { gp_graph_mark(self.pointer.as_ptr(), lend(output), layer as i64) })
    }

    /// Adds an output, whose gradient [`Graph::backward`] will be given.
    pub(crate) fn root(&mut self, output: &Tensor) -> Result<()> {
        // SAFETY: graph and tensor are alive through the call.
        check(unsafe { gp_graph_root(self.pointer.as_ptr(), lend(output)) })
    }

    /// Adds the loss as a root whose gradient is `weight`.
    pub(crate) fn loss(&mut self, loss: &Tensor, weight: f64) -> Result<()> {
        // SAFETY: graph and tensor are alive through the call.
        check(unsafe { gp_graph_loss(self.pointer.as_ptr(), lend(loss), weight) })
    }

    /// Runs autograd from all roots with these gradients, one for each root.
    pub(crate) fn backward(&mut self, grads: &[Option<Tensor>]) -> Result<()> {
        let mut pointers: Vec<TensorPtr> = grads
            .iter()
            .map(|grad| grad.as_ref().map_or(ptr::null_mut(), lend))
            .collect();
        // SAFETY: the pointers are null or lent tensors that outlive the call.
        check(unsafe {
            gp_graph_backward(
                self.pointer.as_ptr(),
                pointers.as_mut_ptr(),
                pointers.len() as i64,
            )
        })
    }

    /// The gradient that arrived at `sink`, if one did; moved out.
    pub(crate) fn take_grad(&mut self, sink: Sink) -> Result<Option<Tensor>> {
        let mut out = ptr::null_mut();
        // SAFETY: the graph is alive; `out` is null or a new tensor on success.
        unsafe {
            check(gp_graph_take_grad(
                self.pointer.as_ptr(),
                sink.0,
                &raw mut out,
            ))?;
            Ok(own(out))
        }
    }

    /// The marked layer whose backward ran last.
    pub(crate) fn layer(&self) -> Option<usize> {
        // SAFETY: the graph is alive; the call only reads an atomic.
        usize::try_from(unsafe { gp_graph_layer(self.pointer.as_ptr()) }).ok()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_graph_free(self.pointer.as_ptr()) }
    }
}

/// Moves the accumulated gradient out of a parameter.
pub(crate) fn take_grad(parameter: &Tensor) -> Result<Option<Tensor>> {
    let mut out = ptr::null_mut();
    // SAFETY: the tensor is alive; `out` is null or a new tensor on success.
    unsafe {
        check(gp_take_grad(lend(parameter), &raw mut out))?;
        Ok(own(out))
    }
}

/// Sets a parameter's gradient; `None` clears it.
pub(crate) fn set_grad(parameter: &Tensor, grad: Option<&Tensor>) -> Result<()> {
    // SAFETY: both tensors are alive through the call, null means none.
    check(unsafe { gp_set_grad(lend(parameter), grad.map_or(ptr::null_mut(), lend)) })
}

/// The numbers of an `AdamW` update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdamWNumbers {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) eps: f64,
}

/// One fused `AdamW` update of all `parameters`; all lists have one entry for each.
pub(crate) fn fused_adamw(
    parameters: &[Tensor],
    grads: &[Tensor],
    means: &[Tensor],
    squares: &[Tensor],
    steps: &[Tensor],
    numbers: AdamWNumbers,
) -> Result<()> {
    let count = same_length(&[parameters, grads, means, squares, steps])?;
    // SAFETY: five lists of `count` lent tensors that outlive the call.
    check(unsafe {
        gp_fused_adamw(
            lend_all(parameters).as_mut_ptr(),
            lend_all(grads).as_mut_ptr(),
            lend_all(means).as_mut_ptr(),
            lend_all(squares).as_mut_ptr(),
            lend_all(steps).as_mut_ptr(),
            count,
            numbers.lr,
            numbers.beta1,
            numbers.beta2,
            numbers.weight_decay,
            numbers.eps,
        )
    })
}

/// The numbers of an SGD update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SgdNumbers {
    pub(crate) lr: f64,
    pub(crate) momentum: f64,
    pub(crate) dampening: f64,
    pub(crate) weight_decay: f64,
    pub(crate) nesterov: bool,
    /// The momentum buffers hold nothing yet.
    pub(crate) first: bool,
}

/// One fused SGD update; `buffers` is empty without momentum.
pub(crate) fn fused_sgd(
    parameters: &[Tensor],
    grads: &[Tensor],
    buffers: &[Tensor],
    numbers: SgdNumbers,
) -> Result<()> {
    let count = same_length(&[parameters, grads])?;
    let mut momenta = lend_all(buffers);
    let momenta = if buffers.is_empty() {
        ptr::null_mut()
    } else {
        same_length(&[parameters, buffers])?;
        momenta.as_mut_ptr()
    };
    // SAFETY: lists of `count` lent tensors that outlive the call, or null.
    check(unsafe {
        gp_fused_sgd(
            lend_all(parameters).as_mut_ptr(),
            lend_all(grads).as_mut_ptr(),
            momenta,
            count,
            numbers.lr,
            numbers.momentum,
            numbers.dampening,
            numbers.weight_decay,
            c_int::from(numbers.nesterov),
            c_int::from(numbers.first),
        )
    })
}

/// `tensors[i] *= factor`, in one call.
pub(crate) fn scale(tensors: &[Tensor], factor: f64) -> Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    // SAFETY: a list of lent tensors that outlive the call.
    check(unsafe { gp_scale(lend_all(tensors).as_mut_ptr(), tensors.len() as i64, factor) })
}

/// `tensors[i] += others[i]`, in one call.
pub(crate) fn add(tensors: &[Tensor], others: &[Tensor]) -> Result<()> {
    let count = same_length(&[tensors, others])?;
    if count == 0 {
        return Ok(());
    }
    // SAFETY: two lists of `count` lent tensors that outlive the call.
    check(unsafe {
        gp_add(
            lend_all(tensors).as_mut_ptr(),
            lend_all(others).as_mut_ptr(),
            count,
        )
    })
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
