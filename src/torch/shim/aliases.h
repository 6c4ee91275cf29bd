// Values some of which share memory.
//
// A layer may return a tensor and a part of it, or the same tensor twice; a later layer that writes
// to one changes the other, and autograd knows it. If such values get new memory or a new beginning
// of a graph, one tensor, their *carrier*, does so for all of them, and they become the
// corresponding parts of the result.
#pragma once

#include "shim.h"

#include <vector>

namespace gpipe {

// Indices of present values, grouped if they share elements, directly or through others. Groups are
// ordered by their first index.
std::vector<std::vector<int64_t>> alias_groups(const at::Tensor* const* values, int64_t count);

using Aliases = std::vector<at::Tensor>;

// The values of one group.
Aliases members(const at::Tensor* const* values, const std::vector<int64_t>& group);

// A tensor with the memory of all of them: the tensor itself where they are one, given
// several times; else a dense one: what all that require a gradient (all, if
// none does) are views of, if that ends where they end, else a row of its elements.
at::Tensor carrier_of(const Aliases& aliases);

// The same for values in a graph, which the carrier is part of. Throws if they are not views of one
// tensor: autograd would not know that they share memory.
at::Tensor carrier_in_graph(const Aliases& aliases);

// The members as parts of another tensor instead of the carrier: that tensor itself, or views of
// it. In its graph, if it is in one, for those that require a gradient, otherwise leaves. For those
// that require none, autograd knows that they share memory if it did for the group.
Aliases members_of(const at::Tensor& other, const at::Tensor& carrier, const Aliases& aliases);

}  // namespace gpipe
