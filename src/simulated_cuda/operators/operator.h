// Properties of an operator that are needed before it is submitted.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

namespace sim {

using torch::jit::Stack;

// An argument of an operator.
struct Argument {
  bool generator = false;
  // Whether it is written to; whether its previous content is ignored.
  bool written = false;
  bool overwritten = false;
  // `out`: resized to the size that the operator determines.
  bool out = false;
};

// An operator by its schema; made once.
struct Operator {
  explicit Operator(const c10::OperatorHandle& handle);
  static const Operator& of(const c10::OperatorHandle& handle);

  c10::OperatorHandle handle;
  // `aten::add`, and the same with the overload after a dot.
  std::string name;
  std::string full_name;
  // `full_name`, alive as long as the process.
  const char* what;
  std::vector<Argument> arguments;
  // By result: the argument that it aliases, or -1 for a new tensor.
  std::vector<int> returned;
  // Index of the argument `beta`, which multiplies the first one; -1 if there is none.
  int beta = -1;
  std::vector<c10::TypeKind> returned_kinds;
  bool makes_tensors = false;
  // Whether it has `out` arguments.
  bool has_out = false;
  // Sizes of results depend on values, or a result is not a tensor: the host has to wait.
  bool waits = false;
  // Whether it takes host tensors with more than one element.
  bool takes_host_tensors = false;
  // Whether libtorch first copies indices and scalars to the device.
  bool copies_host_tensors = false;
};

// Applies `change` to every tensor in a value.
template <typename Change>
c10::IValue each_tensor(const c10::IValue& value, Change&& change) {
  if (value.isTensor()) {
    return change(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor tensor : value.toTensorList()) {
      out.push_back(change(tensor));
    }
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      out.push_back(tensor.has_value() ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    }
    return out;
  }
  return value;
}

// Visits every tensor in a value.
template <typename Look>
void see_tensors(const c10::IValue& value, Look&& look) {
  if (value.isTensor()) {
    look(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor tensor : value.toTensorList()) {
      look(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor.has_value()) {
        look(*tensor);
      }
    }
  }
}

}  // namespace sim
