// Autocast on the calling thread: operators that compute in a shorter type.
//
// libtorch can cache the shorter copies of parameters, but in one process-wide table: a stage's
// thread would drop copies that another's still uses, and whether a parameter used twice has one
// copy or two (and so where its gradients are rounded) would depend on timing. The cache is
// disabled, so no copy outlives the micro-batch's graph either.
#include "shim.h"

#include <ATen/autocast_mode.h>

namespace {

c10::DeviceType device_type(int cuda) { return cuda != 0 ? c10::kCUDA : c10::kCPU; }

}  // namespace

// Switches autocast off (0), to bfloat16 (1) or to half precision (2) for one type of
// device. `previous` gets what `gp_autocast_restore` needs.
GP_API int gp_autocast_set(int cuda, int type, int* previous) {
  return gpipe::guarded([&] {
    auto device = device_type(cuda);
    previous[0] = at::autocast::is_autocast_enabled(device) ? 1 : 0;
    previous[1] = static_cast<int>(at::autocast::get_autocast_dtype(device));
    previous[2] = at::autocast::is_autocast_cache_enabled() ? 1 : 0;
    at::autocast::set_autocast_enabled(device, type != 0);
    if (type != 0) {
      at::autocast::set_autocast_dtype(device, type == 1 ? at::kBFloat16 : at::kHalf);
    }
    at::autocast::set_autocast_cache_enabled(false);
  });
}

GP_API void gp_autocast_restore(int cuda, const int* previous) {
  gpipe::guarded([&] {
    auto device = device_type(cuda);
    at::autocast::set_autocast_enabled(device, previous[0] != 0);
    at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(previous[1]));
    at::autocast::set_autocast_cache_enabled(previous[2] != 0);
  });
}
