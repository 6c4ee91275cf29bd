//! One stage's share of one micro-batch's autograd graph.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use tch::Tensor;

use super::aliases::{lend_some, own_some};
use super::{Result, TensorPtr, check, lend, own};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_graph_new(out: *mut *mut c_void) -> c_int;
    fn gp_graph_free(graph: *mut c_void);
    fn gp_graph_enter(
        graph: *mut c_void,
        received: *const TensorPtr,
        count: i64,
        out: *mut TensorPtr,
        sinks: *mut i64,
    ) -> c_int;
    fn gp_graph_mark(graph: *mut c_void, output: TensorPtr, layer: i64) -> c_int;
    fn gp_graph_roots(graph: *mut c_void, outputs: *const TensorPtr, count: i64) -> c_int;
    fn gp_graph_loss(graph: *mut c_void, loss: TensorPtr, weight: f64, scale: TensorPtr) -> c_int;
    fn gp_graph_backward(graph: *mut c_void, grads: *mut TensorPtr, count: i64) -> c_int;
    fn gp_graph_backward_input(graph: *mut c_void, grads: *mut TensorPtr, count: i64) -> c_int;
    fn gp_graph_backward_weight(graph: *mut c_void) -> c_int;
    fn gp_graph_take_grad(graph: *mut c_void, sink: i64, out: *mut TensorPtr) -> c_int;
    fn gp_graph_layer(graph: *const c_void) -> i64;
    fn gp_copy(tensor: TensorPtr, out: *mut TensorPtr) -> c_int;
    fn gp_no_view(tensor: TensorPtr, out: *mut TensorPtr) -> c_int;
    fn gp_accumulation_node(tensor: TensorPtr, out: *mut TensorPtr) -> c_int;
    fn gp_accumulation_nodes(outputs: *const TensorPtr, count: i64, out: *mut TensorPtr) -> c_int;
    fn gp_changes(tensor: TensorPtr, out: *mut i64) -> c_int;
    fn gp_take_grad(parameter: TensorPtr, out: *mut TensorPtr) -> c_int;
    fn gp_set_grad(parameter: TensorPtr, grad: TensorPtr) -> c_int;
}

/// One stage's share of one micro-batch's autograd graph (see `shim/graph.cpp`).
#[derive(Debug)]
pub(crate) struct Graph {
    pointer: NonNull<c_void>,
}

/// The node at which the gradient of a received tensor will arrive.
#[doc(alias = "GradientEdge")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sink(i64);

/// Values at the beginning of a graph, and the sink of each one's gradient.
pub(crate) type Entered = (Vec<Option<Tensor>>, Vec<Option<Sink>>);

impl Graph {
    pub(crate) fn new() -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds an owned graph after a successful call.
        check(unsafe { gp_graph_new(&raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no graph"))?;
        Ok(Self { pointer })
    }

    /// Returns the values that layers see instead of the received ones, and where the gradient of
    /// each arrives: nowhere for values that can have none, and in one place for values that share
    /// memory, that of the first.
    pub(crate) fn enter(&mut self, received: &[Option<Tensor>]) -> Result<Entered> {
        let lent = lend_some(received.iter().map(Option::as_ref));
        let mut out = vec![ptr::null_mut(); lent.len()];
        let mut sinks = vec![-1; lent.len()];
        let (list, count) = (lent.as_ptr(), lent.len() as i64);
        // SAFETY: the graph is alive, as are the tensors; there is room for as many new
        // tensors and numbers.
        let seen = unsafe {
            let (out, sinks) = (out.as_mut_ptr(), sinks.as_mut_ptr());
            check(gp_graph_enter(
                self.pointer.as_ptr(),
                list,
                count,
                out,
                sinks,
            ))
        };
        seen?;
        // SAFETY: null or new tensors after a successful call.
        let seen = unsafe { own_some(out) };
        let sink = |number: i64| (number >= 0).then_some(Sink(number));
        Ok((seen, sinks.into_iter().map(sink).collect()))
    }

    /// Notes that layer number `layer` computed `output`, for [`Graph::layer`].
    pub(crate) fn mark(&mut self, output: &Tensor, layer: usize) -> Result<()> {
        // SAFETY: graph and tensor are alive through the call.
        check(unsafe { gp_graph_mark(self.pointer.as_ptr(), lend(output), layer as i64) })
    }

    /// Adds outputs, whose gradients [`Graph::backward`] receives; outputs that share memory have
    /// the gradient of the first.
    pub(crate) fn roots<'a>(
        &mut self,
        outputs: impl Iterator<Item = Option<&'a Tensor>>,
    ) -> Result<()> {
        let lent = lend_some(outputs);
        let (list, count) = (lent.as_ptr(), lent.len() as i64);
        // SAFETY: graph and tensors are alive through the call.
        check(unsafe { gp_graph_roots(self.pointer.as_ptr(), list, count) })
    }

    /// Adds the loss as a root with gradient `weight`, times `scale` on its device if given.
    pub(crate) fn loss(
        &mut self,
        loss: &Tensor,
        weight: f64,
        scale: Option<&Tensor>,
    ) -> Result<()> {
        let scale = scale.map_or(ptr::null_mut(), lend);
        // SAFETY: graph and tensors are alive through the call; the scale may be null.
        check(unsafe { gp_graph_loss(self.pointer.as_ptr(), lend(loss), weight, scale) })
    }

    /// Runs autograd from all roots with these gradients, one for each root.
    #[doc(alias = "stage_backward")]
    pub(crate) fn backward(&mut self, grads: &[Option<Tensor>]) -> Result<()> {
        let mut grads = lend_some(grads.iter().map(Option::as_ref));
        let (list, count) = (grads.as_mut_ptr(), grads.len() as i64);
        // SAFETY: the pointers are null or lent tensors that outlive the call.
        check(unsafe { gp_graph_backward(self.pointer.as_ptr(), list, count) })
    }

    /// The input pass of a split backward (zero bubble): sinks receive their gradients, those
    /// of parameters are left to [`Graph::backward_weight`].
    #[doc(alias = "dgrad")]
    #[doc(alias = "stage_backward_input")]
    pub(crate) fn backward_input(&mut self, grads: &[Option<Tensor>]) -> Result<()> {
        let mut grads = lend_some(grads.iter().map(Option::as_ref));
        let (list, count) = (grads.as_mut_ptr(), grads.len() as i64);
        // SAFETY: the pointers are null or lent tensors that outlive the call.
        check(unsafe { gp_graph_backward_input(self.pointer.as_ptr(), list, count) })
    }

    /// The weight pass of a split backward: gradients are added into the parameters.
    #[doc(alias = "wgrad")]
    #[doc(alias = "stage_backward_weight")]
    pub(crate) fn backward_weight(&mut self) -> Result<()> {
        // SAFETY: the graph is alive.
        check(unsafe { gp_graph_backward_weight(self.pointer.as_ptr()) })
    }

    /// Moves out the gradient that arrived at `sink`, if any.
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

    /// Returns the marked layer whose backward ran last.
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

/// Copies a tensor with its strides. Gradients of the copy are the tensor's.
pub(crate) fn copy(tensor: &Tensor) -> Result<Tensor> {
    let mut out = ptr::null_mut();
    // SAFETY: the tensor is alive; `out` is a new tensor on success.
    unsafe {
        check(gp_copy(lend(tensor), &raw mut out))?;
        own(out)
    }
    .ok_or_else(|| TorchError::new("a copy gave no tensor"))
}

/// Returns the tensor behind a new node of the autograd graph: gradients of its uses are added up
/// there before they join those of other nodes, in reverse order of the nodes' creation.
pub(crate) fn accumulation_node(tensor: &Tensor) -> Result<Tensor> {
    let mut out = ptr::null_mut();
    // SAFETY: the tensor is alive; `out` is a new tensor on success.
    unsafe {
        check(gp_accumulation_node(lend(tensor), &raw mut out))?;
        own(out)
    }
    .ok_or_else(|| TorchError::new("an accumulation node gave no tensor"))
}

/// Returns the same values and gradients in a tensor that autograd does not regard as a view.
pub(crate) fn no_view(tensor: Tensor) -> Result<Tensor> {
    let mut out = ptr::null_mut();
    // SAFETY: the tensor is alive; `out` is a new tensor or null on success.
    let value = unsafe {
        check(gp_no_view(lend(&tensor), &raw mut out))?;
        own(out)
    };
    Ok(value.unwrap_or(tensor))
}

/// Returns a layer's outputs, each behind its own accumulation node, that of the first made last.
/// Outputs that share memory have one node, and still share it.
pub(crate) fn accumulation_nodes<'a>(
    outputs: impl Iterator<Item = Option<&'a Tensor>>,
) -> Result<Vec<Option<Tensor>>> {
    let lent = lend_some(outputs);
    let mut out = vec![ptr::null_mut(); lent.len()];
    let (list, count) = (lent.as_ptr(), lent.len() as i64);
    // SAFETY: the tensors are alive; there is room for as many new ones.
    unsafe {
        check(gp_accumulation_nodes(list, count, out.as_mut_ptr()))?;
        Ok(own_some(out))
    }
}

/// Returns how often a tensor's memory was changed in place: autograd's version counter.
#[doc(alias = "in-place version counter")]
#[doc(alias = "_version")]
pub(crate) fn changes(tensor: &Tensor) -> Result<i64> {
    let mut out = 0;
    // SAFETY: the tensor is alive; `out` lives through the call.
    check(unsafe { gp_changes(lend(tensor), &raw mut out) })?;
    Ok(out)
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
