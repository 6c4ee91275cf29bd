// All other operators: the CPU's kernel, in stream order, over device memory.
#include "counts.h"
#include "cpu_view.h"
#include "differences.h"
#include "operator.h"
#include "shapes.h"

#include "../generators.h"
#include "../host_waits.h"
#include "../timing/clock.h"
#include "../timing/kernels.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

namespace sim {

namespace {

using at::Tensor;
using c10::Device;
using c10::IValue;

using Draws = std::vector<std::pair<size_t, std::function<at::Generator()>>>;

// A call to be submitted.
struct Call {
  const Operator& op;
  Device device{c10::kCUDA, 0};
  // The original arguments, and the same bytes as CPU tensors.
  Stack given;
  Stack cpu;
  std::vector<Access> accesses;
  // Generators to draw from, by argument index.
  Draws draws;
};

// The device of all tensors; tensors on the host must be numbers.
Device device_of_call(const Operator& op, const Stack& given) {
  Device device(c10::kCPU);
  for (const auto& value : given) {
    see_tensors(value, [&](const Tensor& tensor) {
      if (!tensor.defined() || !tensor.is_cuda()) {
        return;
      }
      TORCH_CHECK(device.is_cpu() || device == tensor.device(),
                  "Expected all tensors to be on the same device, but found at least two devices, ", device,
                  " and ", tensor.device(), "! (when checking arguments of ", op.full_name, ")");
      device = tensor.device();
    });
    if (value.isDevice() && value.toDevice().is_cuda()) {
      device = value.toDevice();
    }
  }
  return device.has_index() ? device : Device(c10::kCUDA, static_cast<c10::DeviceIndex>(current_device()));
}

Tensor cpu_argument(const Call& call, const Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (tensor.is_cuda()) {
    return cpu_view(tensor);
  }
  TORCH_CHECK(tensor.dim() == 0 || call.op.takes_host_tensors,
              "Expected all tensors to be on the same device, but found at least two devices, ", call.device,
              " and cpu! (when checking arguments of ", call.op.full_name, ")");
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return tensor;
  }
  KernelScope scope;
  return tensor.clone();
}

void make_cpu_arguments(Call& call) {
  for (size_t i = 0; i < call.given.size(); ++i) {
    const auto& value = call.given[i];
    const auto& argument = call.op.arguments[i];
    if (argument.generator) {
      const auto given = value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator());
      call.draws.emplace_back(i, next_draw(given, current_stream(call.device.index())));
      call.cpu.push_back(at::detail::createCPUGenerator());
    } else if (value.isDevice()) {
      call.cpu.push_back(Device(c10::kCPU));
    } else {
      call.cpu.push_back(each_tensor(value, [&](const Tensor& tensor) { return cpu_argument(call, tensor); }));
    }
  }
}

// `beta * self + ...`: with a beta of 0, `self` is ignored.
bool counts_for_nothing(const Call& call, size_t i) {
  if (i != 0 || call.op.beta < 0) {
    return false;
  }
  const auto& beta = call.given[size_t(call.op.beta)];
  return beta.isScalar() && beta.toScalar().toDouble() == 0;
}

void note_arguments(Call& call) {
  for (size_t i = 0; i < call.given.size(); ++i) {
    const auto& argument = call.op.arguments[i];
    see_tensors(call.given[i], [&](const Tensor& tensor) {
      if (!argument.overwritten && !counts_for_nothing(call, i)) {
        note_access(call.accesses, tensor, false);
      }
      if (argument.written) {
        note_access(call.accesses, tensor, true);
      }
    });
  }
}

void draw(const Draws& draws, Stack& values) {
  for (const auto& [argument, next] : draws) {
    values[argument] = next();
  }
}

Entry entry_of(Call& call) {
  Entry entry;
  entry.what = call.op.what;
  entry.accesses = std::move(call.accesses);
  return entry;
}

// Copies a result that is not an argument from the host.
Tensor to_device(const Tensor& made, Device device) {
  if (!made.defined()) {
    return made;
  }
  return made.to(device);
}

// Runs while the host waits, as it needs the results' sizes or values.
Stack run_now(Call& call) {
  host_waits();
  auto& stream = current_stream(call.device.index());
  auto made = std::make_shared<Stack>(call.cpu);
  auto entry = entry_of(call);
  entry.run = [&op = call.op, made, draws = std::move(call.draws)] {
    KernelScope scope;
    draw(draws, *made);
    call_cpu(op, *made);
  };
  stream.submit(std::move(entry));
  stream.synchronize();
  Stack results;
  for (size_t i = 0; i < call.op.returned.size(); ++i) {
    const int same = call.op.returned[i];
    results.push_back(same >= 0 ? call.given[size_t(same)] : each_tensor((*made)[i], [&](const Tensor& tensor) {
      return to_device(tensor, call.device);
    }));
  }
  return results;
}

Tensor empty_result(const ResultShape& shape, Device device) {
  if (!shape.defined) {
    return {};
  }
  return at::empty_strided(shape.sizes, shape.strides, at::TensorOptions().dtype(shape.type).device(device));
}

// Copies the results of a CPU kernel to device memory.
void copy_results(const std::vector<std::vector<Tensor>>& to, const Stack& made) {
  for (size_t i = 0; i < to.size(); ++i) {
    size_t next = 0;
    if (to[i].empty()) {
      continue;
    }
    see_tensors(made[i], [&](const Tensor& tensor) {
      const auto& out = to[i].at(next++);
      if (tensor.defined() && out.defined()) {
        out.copy_(tensor);
      }
    });
  }
}

Stack run_later(Call& call) {
  std::vector<std::vector<ResultShape>> shapes(call.op.returned.size());
  {
    KernelScope scope;
    if (call.op.makes_tensors) {
      shapes = result_shapes(call.op, call.cpu);
    } else {
      resize_outs(call.op, call.given, call.cpu);
    }
  }
  note_arguments(call);
  Stack results;
  std::vector<std::vector<Tensor>> outs(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (const int same = call.op.returned[i]; same >= 0) {
      results.push_back(call.given[size_t(same)]);
      continue;
    }
    c10::List<Tensor> made;
    for (const auto& shape : shapes[i]) {
      const auto out = empty_result(shape, call.device);
      made.push_back(out);
      outs[i].push_back(out.defined() ? cpu_view(out) : out);
      note_access(call.accesses, out, true);
    }
    const bool list = call.op.handle.schema().returns()[i].type()->kind() == c10::TypeKind::ListType;
    results.push_back(list ? IValue(made) : IValue(made.get(0)));
  }
  auto entry = entry_of(call);
  entry.run = [&op = call.op, cpu = std::move(call.cpu), outs = std::move(outs),
               draws = std::move(call.draws)] {
    KernelScope scope;
    Stack values = cpu;
    draw(draws, values);
    call_cpu(op, values);
    copy_results(outs, values);
  };
  current_stream(call.device.index()).submit(std::move(entry));
  return results;
}

// `_index_put_impl_(self, indices, values)`: the host waits for the copies if its memory is not
// page-locked.
void copy_host_tensors(const Operator& op, Stack& stack) {
  auto* arguments = &torch::jit::peek(stack, 0, op.arguments.size());
  const auto device = arguments[0].toTensor().device();
  for (const size_t i : {1, 2}) {
    arguments[i] = each_tensor(arguments[i], [&](const Tensor& tensor) {
      const bool copied = tensor.defined() && tensor.is_cpu() && (i == 1 || tensor.dim() == 0);
      return copied ? tensor.to(device) : tensor;
    });
  }
}

void fallback(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
  const auto& op = Operator::of(handle);
  if (op.copies_host_tensors) {
    copy_host_tensors(op, *stack);
  }
  if (timing::on()) {
    timing::call(op, stack);
    return;
  }
  const auto arguments = op.arguments.size();
  Call call{op};
  call.given.assign(stack->end() - std::ptrdiff_t(arguments), stack->end());
  call.device = device_of_call(op, call.given);
  c10::DeviceGuard guard(call.device);
  make_cpu_arguments(call);
  count(op.full_name, op.waits);
  Stack results;
  if (op.waits) {
    note_arguments(call);
    results = run_now(call);
  } else {
    results = run_later(call);
  }
  torch::jit::drop(*stack, arguments);
  for (auto& result : results) {
    stack->push_back(std::move(result));
  }
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// Whether libtorch has kernels for the CPU and CUDA, but composes the operator of others for other
// devices: the dispatcher would choose the composition here. With the CPU's kernel the numbers
// equal the CPU's, bit by bit. Operators that only call their own `out` overload (key
// CompositeExplicitAutogradNonFunctional) reach the fallback by themselves.
bool is_put_together(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const auto has = [&](DispatchKey key) { return op.hasKernelForDispatchKey(key); };
  const bool composite = has(DispatchKey::CompositeExplicitAutograd) || has(DispatchKey::CompositeImplicitAutograd);
  return composite && has(DispatchKey::CPU) && !has(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// One kernel on a GPU, and many elsewhere, which takes longer.
bool is_one_kernel(const c10::OperatorName& name) {
  return name.name.rfind("aten::_foreach_", 0) == 0 && name.overload_name.rfind("out") == std::string::npos;
}

// Registered for no device: they choose the kernel by their input's device.
bool chooses_by_device(const c10::OperatorName& name) {
  return name.overload_name.empty() && (name.name == "aten::convolution" || name.name == "aten::convolution_backward");
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    if (is_put_together(*op) || (timing::on() ? is_one_kernel(name) : chooses_by_device(name))) {
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
    }
  }
}

}  // namespace
}  // namespace sim
