#include "operator.h"

#include "../stream.h"

#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

namespace sim {

namespace {

bool sized_by_values(const std::string& name) {
  static const auto* names = new std::set<std::string>{
      "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
      "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::repeat_interleave",
      "aten::bincount", "aten::nonzero_static", "aten::equal"};
  return names->count(name) > 0;
}

// In-place operators that do not read the memory that they write.
bool only_writes(const std::string& name) {
  static const auto* names = new std::set<std::string>{
      "aten::zero_", "aten::fill_", "aten::normal_", "aten::uniform_", "aten::bernoulli_",
      "aten::random_", "aten::exponential_", "aten::log_normal_", "aten::cauchy_",
      "aten::geometric_", "aten::eye_", "aten::_foreach_zero_", "aten::_foreach_copy_"};
  return names->count(name) > 0;
}

bool starts_with(const std::string& text, const char* begin) { return text.rfind(begin, 0) == 0; }

}  // namespace

Operator::Operator(const c10::OperatorHandle& handle) : handle(handle) {
  const auto& schema = handle.schema();
  name = schema.name();
  full_name = c10::toString(handle.operator_name());
  what = interned(full_name);
  for (const auto& given : schema.arguments()) {
    Argument own;
    own.generator = given.type()->str().find("Generator") != std::string::npos;
    const auto* alias = given.alias_info();
    own.written = alias != nullptr && alias->isWrite();
    own.out = own.written && given.kwarg_only();
    if (given.name() == "beta" && (starts_with(name, "aten::add") || name == "aten::baddbmm")) {
      beta = static_cast<int>(arguments.size());
    }
    own.overwritten = own.out || (own.written && only_writes(name));
    has_out |= own.out;
    arguments.push_back(own);
  }
  waits = sized_by_values(name);
  for (const auto& result : schema.returns()) {
    int same = -1;
    if (const auto* alias = result.alias_info(); alias != nullptr) {
      for (size_t i = 0; i < arguments.size(); ++i) {
        const auto* other = schema.arguments()[i].alias_info();
        if (other != nullptr && other->beforeSets() == alias->beforeSets()) {
          same = static_cast<int>(i);
        }
      }
      TORCH_CHECK(same < 0 || alias->isWrite(), "simulated GPUs have no kernel for the view ", name);
    }
    returned.push_back(same);
    makes_tensors |= same < 0;
    const auto kind = result.type()->kind();
    returned_kinds.push_back(kind);
    waits |= kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType;
  }
  // `index` itself has its indices copied by device-independent code.
  takes_host_tensors = name == "aten::index" || name.find("_pack_padded") != std::string::npos;
  copies_host_tensors = name == "aten::_index_put_impl_";
}

const Operator& Operator::of(const c10::OperatorHandle& handle) {
  static auto* mutex = new std::mutex();
  static auto* all = new std::unordered_map<const void*, std::unique_ptr<Operator>>();
  const void* key = &handle.schema();
  std::lock_guard<std::mutex> lock(*mutex);
  auto& found = (*all)[key];
  if (found == nullptr) {
    found = std::make_unique<Operator>(handle);
  }
  return *found;
}

}  // namespace sim
