// Values of which some share memory.
//
// A layer may give a tensor and a part of it, or the same tensor twice; a later one that
// writes into the one changes the other, and autograd knows it. Where such values get
// another memory or another beginning of a graph, one tensor does so for all of them,
// their *carrier*, and they become parts of what it has become.
#pragma once

#include "shim.h"

#include <vector>

namespace gpipe {

// The places (0, 1, ...) of the values that are there; those that have elements in
// common, directly or by way of others, together. In increasing order of the first.
std::vector<std::vector<int64_t>> alias_groups(const at::Tensor* const* values, int64_t count);

using Aliases = std::vector<at::Tensor>;

// The values of one group.
Aliases members(const at::Tensor* const* values, const std::vector<int64_t>& group);

// A tensor with the memory of all of them: the tensor itself where they are one, given
// several times; else a dense one: what all that require a gradient (all, if
// none does) are views of, if that ends where they end, else a row of its elements.
at::Tensor carrier_of(const Aliases& aliases);

// The same for values in a graph, in which it is. Throws if they are not views of one
// tensor: autograd does not know then that they share memory.
at::Tensor carrier_in_graph(const Aliases& aliases);

// What they are of another tensor in place of the carrier: that tensor where they are the
// carrier, else views of it. In its graph, if it is in one, those that require a gradient,
// else leaves. Of those that require none, autograd knows that they share memory where it
// does of the group's.
Aliases members_of(const at::Tensor& other, const at::Tensor& carrier, const Aliases& aliases);

}  // namespace gpipe
