// Building layers without memory for their weights.
//
// While a `Weightless` is open on a thread, tensors that operators make on a device named by the
// caller (as all code that builds parameters does) are made on the `meta` device instead: they have
// a shape and a kind, but no elements, and initializing them computes nothing. As with random
// scopes, an otherwise unused dispatch key is switched on for the thread, and every operator falls
// through it except those that make a tensor without taking any.
//
// Operators that take tensors are unchanged: values copied to the CPU to be read must really get
// there, or fail. So are those without a device argument: tch makes tensors from Rust slices that
// way and writes to their memory.
#include "intercept.h"
#include "shim.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>

namespace {

constexpr auto KEY = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

struct Weightless {
  Weightless() : key(KEY) {}
  c10::impl::IncludeDispatchKeyGuard key;
};

c10::TypePtr without_optional(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type;
}

bool is_device(const c10::Argument& argument) {
  return without_optional(argument)->kind() == c10::TypeKind::DeviceObjType;
}

bool holds_tensors(const c10::Argument& argument) {
  auto type = without_optional(argument);
  if (auto list = type->cast<c10::ListType>()) {
    type = list->getElementType();
    if (auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    }
  }
  return type->kind() == c10::TypeKind::TensorType;
}

bool makes_from_nothing(const c10::FunctionSchema& schema) {
  bool device = false;
  for (const auto& argument : schema.arguments()) {
    if (holds_tensors(argument)) {
      return false;
    }
    device = device || is_device(argument);
  }
  return device;
}

void make(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& given = torch::jit::peek(*stack, i, arguments.size());
    if (is_device(arguments[i]) && given.isDevice()) {
      given = c10::Device(c10::kMeta);
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY), stack);
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] { gpipe::intercept<&make>(KEY, __FILE__, __LINE__, &makes_from_nothing); });
}

}  // namespace

GP_API int gp_weightless_open(Weightless** out) {
  return gpipe::guarded([&] {
    install();
    *out = new Weightless();
  });
}

// On the thread that opened it, the one opened last first.
GP_API void gp_weightless_close(Weightless* scope) {
  gpipe::guarded([&] { delete scope; });
}
