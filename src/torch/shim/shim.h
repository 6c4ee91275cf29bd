// Shared by all shim files: the error boundary.
//
// Rust cannot catch C++ exceptions: one that crosses the border aborts the
// process. Every exported function therefore runs its body through `guarded`,
// returns 0 or 1, and leaves the message where `gp_error` finds it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace gpipe {

std::string& last_error();

// Keeps a message for `gp_error`. Where there is no memory for it, one that is short
// enough to need none.
inline void keep_error(const char* message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error() = "out of memory";
  }
}

template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const c10::Error& e) {
    // `what()` holds a C++ back-trace; people read this message.
    keep_error(e.what_without_backtrace());
  } catch (const std::exception& e) {
    keep_error(e.what());
  } catch (...) {
    keep_error("an unknown C++ exception");
  }
  return 1;
}

inline at::Tensor tensor_or_undefined(const at::Tensor* t) {
  return t == nullptr ? at::Tensor() : *t;
}

}  // namespace gpipe

#define GP_API extern "C" __attribute__((visibility("default")))
