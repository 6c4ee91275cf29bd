// What all shim files share: the error border.
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

template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const c10::Error& e) {
    // `what()` holds a C++ back-trace; people read this message.
    last_error() = e.what_without_backtrace();
  } catch (const std::exception& e) {
    last_error() = e.what();
  } catch (...) {
    last_error() = "an unknown C++ exception";
  }
  return 1;
}

inline at::Tensor tensor_or_undefined(const at::Tensor* t) {
  return t == nullptr ? at::Tensor() : *t;
}

}  // namespace gpipe

#define GP_API extern "C" __attribute__((visibility("default")))
