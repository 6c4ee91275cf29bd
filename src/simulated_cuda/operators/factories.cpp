// Operators that make tensors and views; they compute nothing.
#include "cpu_view.h"

#include "../address_space.h"
#include "resize.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/library.h>

#include <cstring>

namespace sim {

namespace {

using at::Tensor;
using c10::Device;

constexpr auto kNotPinned = "Only dense CPU tensors can be pinned";

c10::ScalarType type_or_default(std::optional<at::ScalarType> type) {
  return type.value_or(at::get_default_dtype_as_scalartype());
}

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool> pin,
             std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), kNotPinned);
  c10::DeviceGuard guard(device.value_or(Device(c10::kCUDA, -1)));
  return Tensor(at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(c10::kCUDA),
                                          c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                          type_or_default(type), format));
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<at::ScalarType> type, std::optional<at::Layout>,
                     std::optional<Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), kNotPinned);
  c10::DeviceGuard guard(device.value_or(Device(c10::kCUDA, -1)));
  return Tensor(at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), c10::GetAllocator(c10::kCUDA),
      c10::DispatchKeySet(c10::DispatchKey::CUDA), type_or_default(type)));
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  std::optional<int64_t> own;
  if (offset.has_value()) {
    own = offset->expect_int();
  }
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), own);
}

Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// Makes room for `bytes`; keeps the content.
void grow(c10::StorageImpl* storage, size_t bytes) {
  if (storage->nbytes() >= bytes) {
    return;
  }
  c10::DeviceGuard guard(storage->device());
  auto data = c10::GetAllocator(c10::kCUDA)->allocate(bytes);
  if (const size_t there = storage->nbytes(); there > 0) {
    const auto* from = static_cast<const char*>(storage->data());
    auto* to = static_cast<char*>(data.get());
    Entry copy;
    copy.what = "resize_";
    copy.accesses = {{from, from + there, false}, {to, to + there, true}};
    copy.run = [to = bytes_of(to), from = bytes_of(from), there] { memcpy(to, from, there); };
    current_stream(storage->device().index()).submit(std::move(copy));
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

Tensor& set_storage(Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (stride.size() == size.size() && (!size.empty() || stride.data() != nullptr)) {
    impl->set_sizes_and_strides(sizes, C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  } else {
    impl->set_storage_offset(offset.expect_int());
    impl->set_sizes_contiguous(sizes);
  }
  return self;
}

Tensor& set_nothing(Tensor& self) {
  c10::Storage empty(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(c10::kCUDA), true);
  return set_storage(self, empty, 0, c10::SymIntArrayRef{c10::SymInt(0)}, {});
}

void record_stream(Tensor& self, c10::Stream stream) {
  c10::getDeviceAllocator(c10::kCUDA)->recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef symbolic,
                      std::optional<at::MemoryFormat> format) {
  const auto size = C10_AS_INTARRAYREF_SLOW(symbolic);
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() == size && !format.has_value()) {
    return self;
  }
  const auto bytes =
      at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset());
  grow(impl->unsafe_storage().unsafeGetStorageImpl(), bytes);
  impl->set_sizes_contiguous(size);
  if (format.has_value() && *format != at::MemoryFormat::Preserve) {
    impl->empty_tensor_restride(*format);
  }
  return self;
}

}  // namespace sim
