#include "shapes.h"

#include "cpu_view.h"
#include "differences.h"
#include "resize.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

namespace sim {

namespace {

using Shapes = std::vector<std::vector<ResultShape>>;

ResultShape shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  return {true, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()};
}

bool is_number(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

void append(std::string& key, const void* bytes, size_t count) {
  key.append(static_cast<const char*>(bytes), count);
}

template <typename Number>
void append(std::string& key, const Number& number) {
  append(key, &number, sizeof(number));
}

void append_tensor(std::string& key, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    key += '-';
    return;
  }
  key += is_number(tensor) ? 'n' : 't';
  append(key, tensor.scalar_type());
  append(key, tensor.dim());
  append(key, tensor.sizes().data(), tensor.sizes().size() * sizeof(int64_t));
  append(key, tensor.strides().data(), tensor.strides().size() * sizeof(int64_t));
}

// Appends everything in a value that shapes can depend on.
void append_value(std::string& key, const c10::IValue& value) {
  if (value.isTensor() || value.isTensorList() || value.isOptionalTensorList()) {
    key += '[';
    see_tensors(value, [&](const at::Tensor& tensor) { append_tensor(key, tensor); });
  } else if (value.isInt()) {
    append(key += 'i', value.toInt());
  } else if (value.isDouble()) {
    append(key += 'd', value.toDouble());
  } else if (value.isBool()) {
    append(key += 'b', value.toBool());
  } else if (value.isNone() || value.isGenerator()) {
    key += '0';
  } else {
    key += c10::str(value);
  }
  key += ';';
}

}  // namespace

at::Tensor of_zeros(const at::Tensor& tensor) {
  if (!tensor.defined() || is_number(tensor)) {
    return tensor;
  }
  auto zeros = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  if (zeros.numel() > 0) {
    memset(zeros.mutable_data_ptr(), 0, zeros.storage().nbytes());
  }
  return zeros;
}

Stack run_on_zeros(const Operator& op, const Stack& cpu) {
  Stack values;
  for (const auto& value : cpu) {
    if (value.isGenerator()) {
      values.push_back(at::detail::createCPUGenerator(1));
    } else {
      values.push_back(each_tensor(value, of_zeros));
    }
  }
  call_cpu(op, values);
  return values;
}

Shapes result_shapes(const Operator& op, const Stack& cpu) {
  static auto* mutex = new std::mutex();
  static auto* known = new std::unordered_map<std::string, Shapes>();
  std::string key;
  append(key, &op);
  for (const auto& value : cpu) {
    append_value(key, value);
  }
  {
    std::lock_guard<std::mutex> lock(*mutex);
    if (auto found = known->find(key); found != known->end()) {
      return found->second;
    }
  }
  const Stack results = run_on_zeros(op, cpu);
  Shapes shapes(op.returned.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (op.returned[i] < 0) {
      see_tensors(results[i], [&](const at::Tensor& tensor) { shapes[i].push_back(shape_of(tensor)); });
    }
  }
  std::lock_guard<std::mutex> lock(*mutex);
  return (*known)[key] = shapes;
}

void resize_outs(const Operator& op, const Stack& given, Stack& cpu) {
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    if (!op.arguments[i].out || !given[i].isTensor() || given[i].toTensor().numel() > 0) {
      continue;
    }
    const Stack results = run_on_zeros(op, cpu);
    for (size_t r = 0; r < op.returned.size(); ++r) {
      const auto& out = given[i].toTensor();
      if (op.returned[r] == static_cast<int>(i) && out.sizes() != results[r].toTensor().sizes()) {
        const auto sizes = results[r].toTensor().sizes();
        resize_(out, c10::SymDimVector(sizes.begin(), sizes.end()), std::nullopt);
        cpu[i] = cpu_view(out);
      }
    }
  }
}

}  // namespace sim
