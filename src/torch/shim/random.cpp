// A separate random source for a scope of code on one thread.
//
// libtorch has one default generator per device for the whole process, and most ways of drawing
// (dropout, the initializers, `rand`) cannot be told to use another. While a `Scope` is open on a
// thread, every operator whose `Generator?` argument is empty gets the scope's instead. This is
// done in the dispatcher: a key that is reserved for such modes and otherwise unused is switched on
// for the thread; every operator falls through it except those that draw, so code that draws
// nothing pays nothing.
#include "intercept.h"
#include "shim.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace {

constexpr auto KEY = c10::DispatchKey::TESTING_ONLY_GenericMode;

at::Generator new_generator(c10::Device device, uint64_t seed) {
  if (device.is_cpu()) {
    return at::make_generator<at::CPUGeneratorImpl>(seed);
  }
  auto generator =
      at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  generator.set_current_seed(seed);
  return generator;
}

struct Scope {
  explicit Scope(uint64_t seed) : seed(seed), outer(current), key(KEY) { current = this; }
  ~Scope() { current = outer; }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // Made when first drawn from: most layers draw nothing.
  at::Generator& generator(c10::Device device) {
    for (auto& [own, generator] : generators) {
      if (own == device) {
        return generator;
      }
    }
    generators.emplace_back(device, new_generator(device, seed));
    return generators.back().second;
  }

  static thread_local Scope* current;

  uint64_t seed;
  Scope* outer;
  c10::impl::IncludeDispatchKeyGuard key;
  std::vector<std::pair<c10::Device, at::Generator>> generators;
};

thread_local Scope* Scope::current = nullptr;

bool is_generator(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

// The device on which an operator with these arguments draws.
c10::Device device_of(const torch::jit::Stack& stack, size_t arguments) {
  for (const auto& value : torch::jit::last(stack, arguments)) {
    if (value.isTensor() && value.toTensor().defined()) {
      return value.toTensor().device();
    }
    if (value.isDevice()) {
      return value.toDevice();
    }
  }
  return c10::kCPU;
}

void draw(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; Scope::current != nullptr && i < arguments.size(); ++i) {
    if (!is_generator(arguments[i])) {
      continue;
    }
    auto& given = torch::jit::peek(*stack, i, arguments.size());
    // A tensor without elements (`meta`) draws nothing.
    auto device = device_of(*stack, arguments.size());
    if (given.isNone() && !device.is_meta()) {
      given = Scope::current->generator(device);
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY), stack);
}

// CUDA's fused dropout draws inside the kernel, from the default generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  auto kept = at::empty_like(input, input.options().requires_grad(false));
  if (!train.value_or(true)) {
    kept.fill_(1);
    return {input.clone(), kept.to(at::kBool)};
  }
  kept.bernoulli_(1 - p);
  auto scale = p < 1 ? 1 / (1 - p) : 0;
  return {input.mul(kept.mul(scale)), kept.to(at::kBool)};
}

bool draws(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), &is_generator);
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto& aten = gpipe::intercept<&draw>(KEY, __FILE__, __LINE__, &draws);
    aten.impl("native_dropout", TORCH_FN(native_dropout));
  });
}

}  // namespace

// Opens a scope on this thread whose numbers are fixed by `seed`; scopes nest.
GP_API int gp_random_open(uint64_t seed, Scope** out) {
  return gpipe::guarded([&] {
    install();
    *out = new Scope(seed);
  });
}

// Whether anything was drawn from a scope, on the thread that opened it.
GP_API int gp_random_drew(const Scope* scope) { return scope->generators.empty() ? 0 : 1; }

// Closes the scope that was opened last, on the thread that opened it.
GP_API void gp_random_close(Scope* scope) {
  gpipe::guarded([&] { delete scope; });
}
