// Operators that do something else while a thread has a dispatch key switched on that nothing
// else uses: the key's own kernels for some of aten's operators, and every other falls through.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace gpipe {

// Runs the boxed kernel for the operators whose schema is `chosen`; once per process and key.
// Returns the key's library, for kernels of single operators.
template <auto* kernel, typename Chosen>
torch::Library& intercept(c10::DispatchKey key, const char* file, uint32_t line, Chosen&& chosen) {
  // Never freed: the dispatcher refers to them until the process ends.
  auto* all = new torch::Library(torch::Library::IMPL, "_", key, file, line);
  auto* aten = new torch::Library(torch::Library::IMPL, "aten", key, file, line);
  all->fallback(torch::CppFunction::makeFallthrough());
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op.has_value() && name.name.rfind("aten::", 0) == 0 && chosen(op->schema())) {
      aten->impl(c10::toString(name).c_str() + sizeof("aten::") - 1,
                 torch::CppFunction::makeFromBoxedFunction<kernel>());
    }
  }
  return *aten;
}

}  // namespace gpipe
