#include "aliases.h"

#include <torch/csrc/autograd/variable.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

using at::Tensor;
using gpipe::Aliases;

namespace {

// Byte range of a memory, end exclusive.
struct Range {
  int64_t begin, end;

  bool operator==(const Range& other) const { return begin == other.begin && end == other.end; }
};

int64_t item(const Tensor& tensor) { return static_cast<int64_t>(tensor.element_size()); }

Range range_of(const Tensor& tensor) {
  if (tensor.numel() == 0) {
    // Wherever it begins: the memory may end before that.
    return {0, 0};
  }
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  const auto begin = tensor.storage_offset() * item(tensor);
  return {begin, begin + (last + 1) * item(tensor)};
}

Range range_of(const Aliases& aliases) {
  auto all = range_of(aliases.front());
  for (const auto& tensor : aliases) {
    const auto own = range_of(tensor);
    all = {std::min(all.begin, own.begin), std::max(all.end, own.end)};
  }
  return all;
}

// Possible difference between two tensors' indices in a dimension with this stride.
struct Difference {
  int64_t stride, least, most;
};

// Whether index differences can add up to this many elements. Dimensions are in decreasing order of
// strides, so that few differences are possible for each; returns true once the tries are used up.
bool can_differ_by(const Difference* from, const Difference* end, int64_t elements, int& tries) {
  if (from == end) {
    return elements == 0;
  }
  int64_t low = 0, high = 0;
  for (const auto* rest = from + 1; rest != end; ++rest) {
    low += rest->least * rest->stride;
    high += rest->most * rest->stride;
  }
  const auto more = elements - high;
  const auto first = more > 0 ? (more + from->stride - 1) / from->stride : more / from->stride;
  for (auto d = std::max(first, from->least); d <= from->most; ++d) {
    const auto left = elements - d * from->stride;
    if (left < low) {
      return false;
    }
    if (--tries < 0 || can_differ_by(from + 1, end, left, tries)) {
      return true;
    }
  }
  return false;
}

// Whether two tensors over one memory share an element.
bool meet(const Tensor& a, const Tensor& b) {
  if (item(a) != item(b)) {
    return true;
  }
  std::map<int64_t, Difference, std::greater<>> strides;
  auto add = [&](const Tensor& tensor, bool first) {
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      const auto stride = tensor.stride(i);
      const auto most = tensor.size(i) - 1;
      if (stride > 0 && most > 0) {
        auto& difference = strides.try_emplace(stride, Difference{stride, 0, 0}).first->second;
        (first ? difference.most : difference.least) += first ? most : -most;
      }
    }
  };
  add(a, true);
  add(b, false);
  std::vector<Difference> differences;
  for (const auto& [stride, difference] : strides) {
    differences.push_back(difference);
  }
  int tries = 1000;
  const auto* from = differences.data();
  return can_differ_by(from, from + differences.size(), b.storage_offset() - a.storage_offset(),
                       tries);
}

bool has_memory(const Tensor* tensor) {
  return tensor != nullptr && tensor->defined() && tensor->layout() == c10::kStrided &&
         !tensor->is_nested() && tensor->has_storage();
}

bool has_elements(const Tensor* tensor) { return has_memory(tensor) && tensor->numel() > 0; }

struct Extent {
  const c10::StorageImpl* memory;
  Range range;
  int64_t index;
};

// For each value the first one of its group.
std::vector<int64_t> leads(const Tensor* const* values, int64_t count) {
  std::vector<int64_t> lead(count);
  std::iota(lead.begin(), lead.end(), 0);
  std::vector<Extent> extents;
  // Autograd counts changes of a memory, and goes by views, whether or not there are elements.
  std::map<const c10::StorageImpl*, int64_t> empty;
  for (int64_t i = 0; i < count; ++i) {
    if (has_memory(values[i]) && values[i]->numel() == 0) {
      lead[i] = empty.try_emplace(values[i]->storage().unsafeGetStorageImpl(), i).first->second;
    } else if (has_elements(values[i])) {
      extents.push_back({values[i]->storage().unsafeGetStorageImpl(), range_of(*values[i]), i});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::make_pair(a.memory, a.range.begin) < std::make_pair(b.memory, b.range.begin);
  });
  for (auto a = extents.begin(); a != extents.end(); ++a) {
    for (auto b = a + 1;
         b != extents.end() && b->memory == a->memory && b->range.begin < a->range.end; ++b) {
      const auto [first, second] = std::minmax(lead[a->index], lead[b->index]);
      if (first != second && meet(*values[a->index], *values[b->index])) {
        const auto joined = first, other = second;
        std::replace(lead.begin(), lead.end(), other, joined);
      }
    }
  }
  return lead;
}

bool wants_gradient(const Aliases& aliases) {
  return std::any_of(aliases.begin(), aliases.end(),
                     [](const Tensor& tensor) { return tensor.requires_grad(); });
}

// Whether they are one tensor, passed several times.
bool is_one(const Aliases& aliases) {
  return std::all_of(aliases.begin(), aliases.end(),
                     [&](const Tensor& tensor) { return tensor.is_same(aliases.front()); });
}

Tensor row(const Tensor& of, const Range& range) {
  const auto size = item(of);
  TORCH_CHECK(range.begin % size == 0 && range.end % size == 0,
              "values that share memory are of types of different sizes");
  const auto begin = range.begin / size, count = (range.end - range.begin) / size;
  if (of.dim() == 1 && of.size(0) == count && of.stride(0) == 1 && of.storage_offset() == begin) {
    return of;
  }
  return of.as_strided({count}, {1}, begin);
}

// The base of a view, or the tensor itself.
Tensor whole(const Tensor& tensor) { return tensor.is_view() ? Tensor(tensor._base()) : tensor; }

// The common base of the members that require a gradient as the group does; undefined if they have
// several.
Tensor base_of(const Aliases& aliases) {
  const auto wanted = wants_gradient(aliases);
  Tensor base;
  for (const auto& tensor : aliases) {
    if (tensor.requires_grad() != wanted) {
      continue;
    }
    const auto own = whole(tensor);
    if (base.defined() && !base.is_same(own)) {
      return Tensor();
    }
    base = own;
  }
  return base;
}

// The same bytes with another number type, with gradients if `linked`.
Tensor as_type(const Tensor& tensor, c10::ScalarType type, bool linked) {
  if (tensor.scalar_type() == type) {
    return tensor;
  }
  if (tensor.is_complex() && c10::toRealValueType(tensor.scalar_type()) == type) {
    return at::view_as_real(tensor);
  }
  TORCH_CHECK(!linked, "values of the layer share memory as ", tensor.scalar_type(), " and as ",
              type, ": give a copy of one of them");
  at::NoGradGuard no_grad;
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  const auto range = range_of(tensor);
  auto other = at::empty({0}, tensor.options().dtype(type));
  other.set_(tensor.storage(), range.begin / size, {(range.end - range.begin) / size}, {1});
  torch::autograd::impl::set_version_counter(other, torch::autograd::impl::version_counter(tensor));
  return other;
}

// The view of `other` that corresponds to `part` as a view of `carrier`.
Tensor part_of(const Tensor& other, const Tensor& carrier, const Tensor& part, bool linked) {
  const auto bytes = part.storage_offset() * item(part) - carrier.storage_offset() * item(carrier);
  const auto source = as_type(other, part.scalar_type(), linked);
  auto view = source.as_strided(part.sizes(), part.strides(),
                                source.storage_offset() + bytes / item(part));
  // Relative to the carrier: the copy may stand for a conjugated one.
  if (part.is_conj() != carrier.is_conj()) {
    view = view.conj();
  }
  return part.is_neg() != carrier.is_neg() ? at::_neg_view(view) : view;
}

}  // namespace

namespace gpipe {

std::vector<std::vector<int64_t>> alias_groups(const Tensor* const* values, int64_t count) {
  std::vector<std::vector<int64_t>> groups, by_lead(count);
  const auto lead = leads(values, count);
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] != nullptr) {
      by_lead[lead[i]].push_back(i);
    }
  }
  for (auto& group : by_lead) {
    if (!group.empty()) {
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

Aliases members(const Tensor* const* values, const std::vector<int64_t>& group) {
  Aliases aliases;
  for (const auto index : group) {
    aliases.push_back(*values[index]);
  }
  return aliases;
}

Tensor carrier_of(const Aliases& aliases) {
  if (is_one(aliases)) {
    return aliases.front();
  }
  at::AutoGradMode graph(true);
  const auto base = base_of(aliases);
  const auto all = range_of(aliases);
  if (base.defined() && base.is_non_overlapping_and_dense() && range_of(base) == all) {
    return base;
  }
  if (base.defined()) {
    return row(base, all);
  }
  const auto wanted = wants_gradient(aliases);
  const auto first =
      std::find_if(aliases.begin(), aliases.end(),
                   [&](const Tensor& tensor) { return tensor.requires_grad() == wanted; });
  return row(first->detach(), all).set_requires_grad(wanted);
}

Tensor carrier_in_graph(const Aliases& aliases) {
  TORCH_CHECK(is_one(aliases) || base_of(aliases).defined(),
              "values of the layer share memory, but not their gradients: autograd does not know "
              "that a change of one changes the other, so give a copy of one of them");
  return carrier_of(aliases);
}

Aliases members_of(const Tensor& other, const Tensor& carrier, const Aliases& aliases) {
  at::AutoGradMode graph(true);
  const auto values = other.detach();
  // Views require a gradient as soon as what they are views of does. So those without one
  // are views of other tensors, one for each that they are views of now.
  std::vector<std::pair<Tensor, Tensor>> without;
  auto without_gradient = [&](const Tensor& part) {
    const auto all = whole(part);
    for (const auto& [one, values_of_one] : without) {
      if (one.is_same(all)) {
        return values_of_one;
      }
    }
    return without.emplace_back(all, other.detach()).second;
  };
  Aliases parts;
  for (size_t i = 0; i < aliases.size(); ++i) {
    const auto& part = aliases[i];
    const auto same = std::find_if(aliases.begin(), aliases.begin() + i,
                                   [&](const Tensor& one) { return one.is_same(part); });
    if (same != aliases.begin() + i) {
      parts.push_back(parts[same - aliases.begin()]);
      continue;
    }
    const bool linked = part.requires_grad() && !other.is_leaf();
    const auto source = linked ? other : part.requires_grad() ? values : without_gradient(part);
    parts.push_back(part.is_same(carrier) ? source : part_of(source, carrier, part, linked));
  }
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (aliases[i].requires_grad() && parts[i].is_leaf()) {
      parts[i].set_requires_grad(true);
    }
  }
  return parts;
}

}  // namespace gpipe

// For each of `count` values (null: absent), the first one of its group; `shared` is the number of
// groups with several members.
GP_API int gp_aliases(const at::Tensor* const* values, int64_t count, int64_t* lead, int64_t* shared) {
  return gpipe::guarded([&] {
    *shared = 0;
    for (const auto& group : gpipe::alias_groups(values, count)) {
      *shared += group.size() > 1 ? 1 : 0;
      for (const auto index : group) {
        lead[index] = group.front();
      }
    }
  });
}

// Marks the values that lie in the memory of some of the `own` tensors.
GP_API int gp_in_memory_of(const at::Tensor* const* values, int64_t count,
                           const at::Tensor* const* own, int64_t owned, bool* inside) {
  return gpipe::guarded([&] {
    for (int64_t i = 0; i < count; ++i) {
      inside[i] = has_elements(values[i]) && std::any_of(own, own + owned, [&](const Tensor* one) {
                    return one->has_storage() && one->storage().is_alias_of(values[i]->storage());
                  });
    }
  });
}

// The carrier of one group.
GP_API int gp_carrier(const at::Tensor* const* aliases, int64_t count, at::Tensor** out) {
  return gpipe::guarded([&] {
    Aliases all;
    std::for_each(aliases, aliases + count, [&](const at::Tensor* one) { all.push_back(*one); });
    *out = new at::Tensor(gpipe::carrier_of(all));
  });
}

// The group's members as views of another tensor instead of its carrier.
GP_API int gp_parts(const at::Tensor* other, const at::Tensor* carrier,
                    const at::Tensor* const* aliases, int64_t count, at::Tensor** out) {
  return gpipe::guarded([&] {
    Aliases all;
    std::for_each(aliases, aliases + count, [&](const at::Tensor* one) { all.push_back(*one); });
    const auto parts = gpipe::members_of(*other, *carrier, all);
    for (int64_t i = 0; i < count; ++i) {
      out[i] = new at::Tensor(parts[i]);
    }
  });
}


// A new tensor, not a view, over another one's memory, from a byte offset after that one's first
// element: replaces several operator calls per value from another process.
GP_API int gp_tensor_over(const at::Tensor* memory, int64_t begin, int kind, const int64_t* sizes,
                          const int64_t* strides, int64_t dimensions, at::Tensor** out) {
  return gpipe::guarded([&] {
    auto type = c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(kind));
    auto item = static_cast<int64_t>(type.itemsize());
    auto first = memory->storage_offset() * static_cast<int64_t>(memory->itemsize()) + begin;
    auto end = first;
    for (int64_t i = 0; i < dimensions; ++i) {
      TORCH_CHECK(sizes[i] > 0 && strides[i] >= 0, "a tensor over memory has elements");
      end += (sizes[i] - 1) * strides[i] * item;
    }
    auto has = static_cast<int64_t>(memory->storage().nbytes());
    TORCH_CHECK(first >= 0 && first % item == 0 && end + item <= has, "a tensor is not within its memory");
    auto over = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory->storage()), memory->key_set(), type);
    auto* impl = over.unsafeGetTensorImpl();
    impl->set_storage_offset(first / item);
    impl->set_sizes_and_strides({sizes, static_cast<size_t>(dimensions)}, {strides, static_cast<size_t>(dimensions)});
    // Writing to one of them changes the others.
    impl->set_version_counter(memory->unsafeGetTensorImpl()->version_counter());
    *out = new at::Tensor(std::move(over));
  });
}

// The tensor's identity as a number, and the index of its first element in its storage.
GP_API int gp_identity(const at::Tensor* tensor, uint64_t* identity, int64_t* offset) {
  return gpipe::guarded([&] {
    *identity = reinterpret_cast<uint64_t>(tensor->unsafeGetTensorImpl());
    *offset = tensor->storage_offset();
  });
}
