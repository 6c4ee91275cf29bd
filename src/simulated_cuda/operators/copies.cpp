// Copies: on a device, between devices, to and from the host.
#include "counts.h"
#include "cpu_view.h"

#include "../address_space.h"
#include "../host_waits.h"
#include "../pinned_memory.h"
#include "../settings.h"
#include "../timing/clock.h"
#include "../timing/cost.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <chrono>
#include <thread>

namespace sim {

namespace {

using at::Tensor;

// Delays a copy by the link's time.
void slow_link(size_t bytes) {
  const auto& own = settings();
  const double least = own.latency + (own.bandwidth > 0 ? double(bytes) / own.bandwidth : 0);
  if (least > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(least));
  }
}

double seconds(Unit unit, const Tensor& to, const Tensor& from) {
  switch (unit) {
    case Unit::kernel:
      return timing::kernel_seconds(0, to.scalar_type(), timing::bytes_in(from) + timing::bytes_in(to));
    case Unit::copy_peer:
      return timing::model().copy_between(from.device().index(), to.device().index(), double(to.nbytes()));
    default:
      return timing::model().host_copy(double(to.nbytes()));
  }
}

// Makes the entry of a copy, over a link unless it stays on a device.
Entry copying(const char* what, Unit unit, const Tensor& to, const Tensor& from) {
  Entry entry;
  entry.what = what;
  entry.unit = unit;
  entry.peer = to.is_cuda() ? to.device().index() : -1;
  if (timing::on()) {
    entry.seconds = seconds(unit, to, from);
    return entry;
  }
  note_access(entry.accesses, from, false);
  note_access(entry.accesses, to, true);
  entry.run = [unit, to = cpu_view(to), from = cpu_view(from)] {
    if (unit != Unit::kernel) {
      slow_link(from.nbytes());
    }
    KernelScope scope;
    to.copy_(from);
  };
  return entry;
}

void on_device(const Tensor& to, const Tensor& from) {
  count("copy_ (on a device)", false);
  current_stream(to.device().index()).submit(copying("copy_ on a device", Unit::kernel, to, from));
}

// As libtorch: on the source's current stream, after the work of the destination's current stream,
// whose later work waits for it.
void between_devices(const Tensor& to, const Tensor& from) {
  count("copy_ (between devices)", false);
  auto& near = current_stream(from.device().index());
  auto& far = current_stream(to.device().index());
  far.flush_late();
  near.wait(far.record());
  near.submit(copying("copy_ between devices", Unit::copy_peer, to, from));
  far.wait(near.record());
}

// Page-locked memory is read when the stream reaches the copy, other memory before the call
// returns.
void from_host(const Tensor& to, const Tensor& from, bool non_blocking) {
  auto& stream = current_stream(to.device().index());
  if (non_blocking && is_pinned(from.storage().data())) {
    count("copy_ (from page-locked memory)", false);
    // The entry keeps no memory alive, so that reusing the page-locked memory too early shows.
    stream.submit(copying("copy_ from page-locked memory", Unit::copy_in, to, from));
    use_pinned(from, stream);
    return;
  }
  count("copy_ (from the host)", !non_blocking);
  auto staged = from;
  if (!timing::on()) {
    KernelScope scope;
    staged = from.clone();
  }
  auto entry = copying("copy_ from the host", Unit::copy_in, to, staged);
  entry.run = [staged, run = std::move(entry.run)] { run(); };
  stream.submit(std::move(entry));
  if (!non_blocking) {
    stream.synchronize();
  }
}

// The host waits if the memory is not page-locked, whatever the caller asks for.
void to_host(const Tensor& to, const Tensor& from, bool non_blocking) {
  auto& stream = current_stream(from.device().index());
  const bool waits = !non_blocking || !is_pinned(to.storage().data());
  count(waits ? "copy_ (to the host)" : "copy_ (into page-locked memory)", waits);
  if (waits && stream.capture) {
    stream.synchronize();  // which a capture refuses
  }
  stream.submit(copying("copy_ to the host", Unit::copy_out, to, from));
  if (timing::on()) {
    timing::fill_with_zeros(to);
  }
  if (waits) {
    stream.synchronize();
  } else {
    use_pinned(to, stream);
  }
}

// Whether a copy engine can do it: one contiguous range, one type.
bool is_plain(const Tensor& to, const Tensor& from) {
  if (to.scalar_type() != from.scalar_type() || !to.is_non_overlapping_and_dense() ||
      !from.is_non_overlapping_and_dense()) {
    return false;
  }
  for (int64_t d = 0; d < to.dim(); ++d) {
    if (to.size(d) != 1 && to.stride(d) != from.stride(d)) {
      return false;
    }
  }
  return true;
}

// As `copy_requires_temporaries` in libtorch's Copy.cu.
bool needs_temporaries(const Tensor& to, const Tensor& from) {
  if (to.device() == from.device() || is_plain(to, from)) {
    return false;
  }
  return !(to.is_cuda() && from.is_cuda() && settings().peers);
}

// Copies through dense tensors of one type. Non-blocking copies convert on the device.
void with_temporaries(const Tensor& to, const Tensor& from, bool non_blocking) {
  const auto contiguous = at::MemoryFormat::Contiguous;
  const auto converts_on = non_blocking ? c10::kCUDA : c10::kCPU;
  Tensor dense_to, dense_from;
  if (from.device().type() == converts_on) {
    dense_to = to.is_contiguous() ? to : at::empty_like(to, contiguous);
    dense_from = from.to(to.scalar_type()).contiguous();
  } else {
    const bool same = to.scalar_type() == from.scalar_type();
    dense_to = to.is_contiguous() && same
        ? to
        : at::empty_like(to, to.options().dtype(from.scalar_type()), contiguous);
    dense_from = from.contiguous();
  }
  dense_to.copy_(dense_from, non_blocking);
  if (!dense_to.is_same(to)) {
    to.copy_(dense_to, non_blocking);
  }
}

Tensor& copy_(Tensor& self, const Tensor& given, bool non_blocking) {
  TORCH_CHECK(self.defined() && given.defined(), "undefined tensors");
  if (self.is_same(given) || self.numel() == 0) {
    return self;
  }
  const auto from = given.sizes() == self.sizes() ? given : given.expand(self.sizes());
  if (needs_temporaries(self, from)) {
    with_temporaries(self, from, non_blocking);
  } else if (self.is_cuda() && from.is_cuda()) {
    self.device() == from.device() ? on_device(self, from) : between_devices(self, from);
  } else {
    // libtorch's own switch sees only copies that the caller requests as blocking.
    if (!non_blocking) {
      host_waits();
    }
    self.is_cuda() ? from_host(self, from, non_blocking) : to_host(self, from, non_blocking);
  }
  return self;
}

at::Scalar local_scalar_dense(const Tensor& self) {
  count("_local_scalar_dense", true);
  host_waits();
  auto& stream = current_stream(self.device().index());
  Entry read;
  read.what = "_local_scalar_dense";
  read.unit = Unit::copy_out;
  if (timing::on()) {
    read.seconds = timing::model().host_copy(double(self.itemsize()));
  } else {
    note_access(read.accesses, self, false);
  }
  read.run = [] {};
  stream.submit(std::move(read));
  stream.synchronize();
  KernelScope scope;
  return timing::on() ? at::zeros({}, self.options().device(at::kCPU)).item() : cpu_view(self).item();
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

}  // namespace
}  // namespace sim
