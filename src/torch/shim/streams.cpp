// Streams, events and copies of CUDA devices, through what c10 has for every kind
// of device: no CUDA header is needed, and libtorch_cuda brings the implementation
// when it is loaded.
//
// A stream travels as its device and its id, of which `c10::Stream` is made.
#include "shim.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>

namespace {

c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(c10::kCUDA); }

c10::Device cuda(int device) {
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
}

c10::Stream stream_of(int device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, cuda(device), id);
}

}  // namespace

// A stream out of libtorch's pool of the device.
GP_API int gp_stream_new(int device, int64_t* id) {
  return gpipe::guarded([&] { *id = guard().getNewStream(cuda(device)).id(); });
}

// The calling thread's current stream of the device.
GP_API int gp_stream_current(int device, int64_t* id) {
  return gpipe::guarded([&] { *id = guard().getStream(cuda(device)).id(); });
}

// Makes a stream the calling thread's current one of its device; gives the one before.
GP_API int gp_stream_enter(int device, int64_t id, int64_t* before) {
  return gpipe::guarded(
      [&] { *before = guard().exchangeStream(stream_of(device, id)).id(); });
}

// Records an event at the current end of a stream. Events keep the time.
GP_API int gp_event_record(int device, int64_t id, c10::Event** out) {
  return gpipe::guarded([&] {
    auto event = std::make_unique<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    event->record(stream_of(device, id));
    *out = event.release();
  });
}

GP_API void gp_event_free(c10::Event* event) {
  gpipe::guarded([&] { delete event; });
}

// Makes later work of the stream wait for the event; the host does not.
GP_API int gp_event_block(const c10::Event* event, int device, int64_t id) {
  return gpipe::guarded([&] { event->block(stream_of(device, id)); });
}

// The host waits for the event.
GP_API int gp_event_synchronize(const c10::Event* event) {
  return gpipe::guarded([&] { event->synchronize(); });
}

// Whether the event is over, without waiting.
GP_API int gp_event_query(const c10::Event* event, int* over) {
  return gpipe::guarded([&] { *over = event->query() ? 1 : 0; });
}

// Milliseconds from one event to another, both of them over and of one device.
GP_API int gp_event_elapsed(const c10::Event* from, const c10::Event* to, double* out) {
  return gpipe::guarded([&] { *out = from->elapsedTime(*to); });
}

// Keeps the tensor's memory from being reused before the work in the stream at the time of freeing
// is over.
GP_API int gp_record_stream(const at::Tensor* tensor, int device, int64_t id) {
  return gpipe::guarded([&] { tensor->record_stream(stream_of(device, id)); });
}

// A copy on a CUDA device, or (device -1) in page-locked memory of the host, on the
// current streams of the devices that take part; the host does not wait. The copy
// has the source's strides, but for a source with gaps, or with elements that share
// memory: it is dense, in the same order of dimensions. Memory of the host that is not
// page-locked goes through page-locked memory first.
GP_API int gp_copy_to(const at::Tensor* tensor, int device, at::Tensor** out) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    auto from = tensor->detach();
    const bool pinned = device < 0;
    if (from.layout() != c10::kStrided) {
      const auto to = pinned ? c10::Device(c10::kCPU) : cuda(device);
      *out = new at::Tensor(from.to(to, from.scalar_type()));
      return;
    }
    // libtorch would copy non-dense tensors through temporaries of its own: in host memory that is
    // not page-locked, for which the host waits.
    const bool dense = from.is_non_overlapping_and_dense();
    if (!pinned && from.device().is_cpu() && !(dense && from.is_pinned())) {
      auto locked = at::empty_like(from, from.options().pinned_memory(true),
                                   at::MemoryFormat::Preserve);
      locked.copy_(from);
      from = std::move(locked);
    } else if (!dense) {
      from = from.clone();
    }
    auto options = from.options().pinned_memory(pinned);
    options = options.device(pinned ? c10::Device(c10::kCPU) : cuda(device));
    auto copy = at::empty_like(from, options, at::MemoryFormat::Preserve);
    copy.copy_(from, /*non_blocking=*/true);
    *out = new at::Tensor(std::move(copy));
  });
}

// Copies into existing memory; non-blocking, as above.
GP_API int gp_copy_into(const at::Tensor* to, const at::Tensor* from) {
  return gpipe::guarded([&] {
    at::NoGradGuard no_grad;
    to->copy_(*from, /*non_blocking=*/true);
  });
}
