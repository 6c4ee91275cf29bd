// One stage's share of one micro-batch's autograd graph.
//
// The graph begins at sinks and ends at roots. A received tensor becomes a
// non-leaf whose grad_fn is a `GradSink`: its gradient arrives there with the
// strides it has, exactly as it would reach the previous layer were the model
// not cut (a leaf's AccumulateGrad may copy it into another layout, and kernels
// that see another layout may round differently), and layers may work in place
// on it. Roots are edges, not tensors: the data of an output that has been sent
// is not kept alive for the backward pass.
//
// The backward runs in one go, or split: the input pass computes the gradients of
// the sinks, the weight pass, any time later, those of the parameters (see
// `split.h`).
#include "aliases.h"
#include "split.h"
#include "walk.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

struct GradSink : public Node {
  at::Tensor grad;

  variable_list apply(variable_list&& grads) override {
    grad = std::move(grads.at(0));
    return {};
  }
  std::string name() const override { return "GpipeGradSink"; }
};

// The same memory and gradients in a tensor that autograd does not regard as a view, as on another
// stage: a tensor changed in place has a new beginning there, and no gradient bypasses it through
// its base, where sums would be in another order. Expanded tensors stay views: autograd writes to
// their parts through their base.
at::Tensor no_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_view() || !at::GradMode::is_enabled() ||
      at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return tensor;
  }
  auto value = tensor.detach();
  if (tensor.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(value, torch::autograd::impl::gradient_edge(tensor));
  }
  return value;
}

// A node at which the gradients of a value's uses are added up before they join others.
struct AccumulationNode : public Node {
  variable_list apply(variable_list&& grads) override { return std::move(grads); }
  std::string name() const override { return "GpipeAccumulationNode"; }
};

// A view that has each address of a tensor's memory once: in an expanded tensor several elements
// share one.
at::Tensor once(const at::Tensor& tensor) {
  auto places = tensor;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) {
      places = places.narrow(i, 0, 1);
    }
  }
  return places;
}

// The beginning of a graph (or of an accumulation node), such that parts of it can be changed in
// place: autograd writes their gradients into one tensor for the whole, which needs an address
// for each element. An expanded tensor has too few, so it becomes a view of one that is not
// expanded. Where it is read unchanged, its gradient is as if it were no view.
at::Tensor beginning(const at::Tensor& value) {
  if (value.layout() != c10::kStrided || value.is_nested() || value.numel() == 0) {
    return value;
  }
  at::AutoGradMode graph(true);
  const auto places = once(value);
  if (places.is_same(value)) {
    return value;
  }
  const auto own = places.detach();
  if (value.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(own, torch::autograd::impl::gradient_edge(places));
  }
  const auto view = own.expand(value.sizes());
  if (value.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(view, torch::autograd::impl::gradient_edge(value));
  }
  return view;
}

at::Tensor accumulation_node_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad() || !at::GradMode::is_enabled()) {
    return no_view(tensor);
  }
  std::shared_ptr<AccumulationNode> node(new AccumulationNode(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(tensor));
  auto value = tensor.detach();
  torch::autograd::create_gradient_edge(value, node);
  return beginning(value);
}

struct Root {
  Edge edge;
  // The loss is the only root that brings its own gradient.
  at::Tensor seed;
};

struct Graph {
  std::vector<Root> roots;
  std::vector<std::shared_ptr<GradSink>> sinks;
  gpipe::LayerMarks marks;
  // State left by the input pass for the weight pass.
  gpipe::SplitRun split;
};

// The tensor that layers see in place of a received one, whose gradient will arrive at
// `*sink` where it is wanted.
at::Tensor begin(Graph* graph, const at::Tensor& received, bool wanted, int64_t* sink) {
  if (!wanted) {
    return beginning(received);
  }
  auto value = received.detach();
  std::shared_ptr<GradSink> node(new GradSink(), torch::autograd::deleteNode);
  torch::autograd::create_gradient_edge(value, node);
  *sink = static_cast<int64_t>(graph->sinks.size());
  graph->sinks.push_back(std::move(node));
  return beginning(value);
}

bool wants_gradient(const gpipe::Aliases& aliases) {
  return std::any_of(aliases.begin(), aliases.end(),
                     [](const at::Tensor& tensor) { return tensor.requires_grad(); });
}

// Puts the values of a group where they belong.
void place(gpipe::Aliases values, const std::vector<int64_t>& group, std::vector<at::Tensor>& all) {
  for (size_t i = 0; i < group.size(); ++i) {
    all[group[i]] = std::move(values[i]);
  }
}

// Returns the present values.
void give(std::vector<at::Tensor>& values, const at::Tensor* const* there, at::Tensor** out) {
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = there[i] == nullptr ? nullptr : new at::Tensor(std::move(values[i]));
  }
}

// The roots that have a gradient, and their gradients, moved out of the graph.
std::pair<torch::autograd::edge_list, variable_list> take_roots(Graph* graph, at::Tensor** grads,
                                                                int64_t count) {
  TORCH_CHECK(count == static_cast<int64_t>(graph->roots.size()), "the stage has ",
              graph->roots.size(), " outputs but ", count, " gradients arrived");
  torch::autograd::edge_list edges;
  variable_list seeds;
  for (int64_t i = 0; i < count; ++i) {
    auto& root = graph->roots[i];
    auto grad = root.seed.defined() ? std::move(root.seed) : gpipe::tensor_or_undefined(grads[i]);
    if (root.edge.is_valid() && grad.defined()) {
      edges.push_back(std::move(root.edge));
      seeds.push_back(std::move(grad));
    }
  }
  graph->roots.clear();
  return {std::move(edges), std::move(seeds)};
}

// A copy with the same strides, so that kernels do with it exactly what they do
// with the original. To autograd it is the original.
at::Tensor copy_of(const at::Tensor& tensor) {
  at::Tensor copy;
  {
    at::NoGradGuard no_grad;
    const auto values = tensor.detach();
    if (values.layout() != c10::kStrided || values.is_non_overlapping_and_dense()) {
      copy = values.clone();
    } else {
      copy = at::empty_strided(values.sizes(), values.strides(), values.options());
      once(copy).copy_(once(values));
    }
  }
  if (!at::GradMode::is_enabled()) {
    return copy;
  }
  if (tensor.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(copy, torch::autograd::impl::gradient_edge(tensor));
  }
  return beginning(copy);
}

}  // namespace

GP_API int gp_graph_new(Graph** out) {
  return gpipe::guarded([&] { *out = new Graph(); });
}

GP_API void gp_graph_free(Graph* graph) {
  // Destructors of autograd nodes do not throw; `guarded` is for the day they do.
  gpipe::guarded([&] { delete graph; });
}

// The values that layers see in place of the received ones (null: absent), of which those
// that share memory still do; `sinks` is where their gradients will arrive, or -1 where
// they can have none. The gradient of several that share memory arrives at the first.
GP_API int gp_graph_enter(Graph* graph, const at::Tensor* const* received, int64_t count,
                          at::Tensor** out, int64_t* sinks) {
  return gpipe::guarded([&] {
    std::vector<at::Tensor> seen(count);
    std::fill(sinks, sinks + count, -1);
    for (const auto& group : gpipe::alias_groups(received, count)) {
      const auto first = group.front();
      if (group.size() == 1) {
        const auto& value = *received[first];
        seen[first] = begin(graph, value, value.requires_grad(), &sinks[first]);
        continue;
      }
      const auto aliases = gpipe::members(received, group);
      const auto carrier = gpipe::carrier_of(aliases);
      const auto own = begin(graph, carrier, wants_gradient(aliases), &sinks[first]);
      place(gpipe::members_of(own, carrier, aliases), group, seen);
    }
    give(seen, received, out);
  });
}

// Notes that `output` is what layer number `layer` computed: from the moment
// its gradient is complete, that layer's backward is what runs.
GP_API int gp_graph_mark(Graph* graph, const at::Tensor* output, int64_t layer) {
  return gpipe::guarded([&] { graph->marks.add(*output, layer); });
}

// Outputs of the stage (null: absent), whose gradients will be given to
// `gp_graph_backward`: of several that share memory, one gradient for the first.
GP_API int gp_graph_roots(Graph* graph, const at::Tensor* const* outputs, int64_t count) {
  return gpipe::guarded([&] {
    const auto first = graph->roots.size();
    graph->roots.resize(first + count);
    for (const auto& group : gpipe::alias_groups(outputs, count)) {
      auto output = *outputs[group.front()];
      if (group.size() > 1) {
        const auto aliases = gpipe::members(outputs, group);
        output = wants_gradient(aliases) ? gpipe::carrier_in_graph(aliases) : output;
      }
      if (output.defined() && output.requires_grad()) {
        graph->roots[first + group.front()].edge = torch::autograd::impl::gradient_edge(output);
      }
    }
  });
}

// The loss, whose gradient is `weight`: what a multiplication by the weight
// before the backward pass would give, without the multiplication. Times `scale`, a
// number on the loss's device, where there is one (null: none).
GP_API int gp_graph_loss(Graph* graph, const at::Tensor* loss, double weight,
                         const at::Tensor* scale) {
  return gpipe::guarded([&] {
    TORCH_CHECK(loss->defined() && loss->numel() == 1, "the loss must be one number, but has shape ",
                loss->sizes());
    TORCH_CHECK(loss->requires_grad(), "the loss does not depend on any parameter");
    auto seed = at::full_like(*loss, weight);
    if (scale != nullptr) {
      at::NoGradGuard no_grad;
      seed.mul_(*scale);
    }
    graph->roots.push_back({torch::autograd::impl::gradient_edge(*loss), std::move(seed)});
  });
}

// Runs autograd once from all roots; `grads[i]` (null: none) belongs to root i.
// Parameters accumulate, sinks receive, the graph's saved tensors are freed.
GP_API int gp_graph_backward(Graph* graph, at::Tensor** grads, int64_t count) {
  return gpipe::guarded([&] {
    auto [edges, seeds] = take_roots(graph, grads, count);
    graph->marks.first.clear();
    if (!edges.empty()) {
      gpipe::run_backward(edges, std::move(seeds), graph->marks);
    }
  });
}

// The input pass: sinks receive, parameters do not accumulate; what only this pass
// needed is freed.
GP_API int gp_graph_backward_input(Graph* graph, at::Tensor** grads, int64_t count) {
  return gpipe::guarded([&] {
    auto [edges, seeds] = take_roots(graph, grads, count);
    std::vector<std::shared_ptr<Node>> sinks(graph->sinks.begin(), graph->sinks.end());
    auto received = graph->split.input_pass(std::move(edges), std::move(seeds), sinks, graph->marks);
    graph->marks.first.clear();
    for (size_t i = 0; i < received.size(); ++i) {
      graph->sinks[i]->grad = std::move(received[i]);
    }
  });
}

// The weight pass: parameters accumulate the gradients of the joint backward, to the bit.
GP_API int gp_graph_backward_weight(Graph* graph) {
  return gpipe::guarded([&] { graph->split.weight_pass(graph->marks); });
}

// The gradient that arrived at a sink, moved out; null where none did. Whoever gets
// it may keep it as a parameter's gradient and add to it in place, so it must not
// share memory with a gradient that is kept here. (libtorch keeps none that is not dense.)
GP_API int gp_graph_take_grad(Graph* graph, int64_t sink, at::Tensor** out) {
  return gpipe::guarded([&] {
    auto grad = std::exchange(graph->sinks.at(static_cast<size_t>(sink))->grad, at::Tensor());
    if (grad.defined() && grad.has_storage() && grad.storage().use_count() > 1 &&
        grad.is_non_overlapping_and_dense()) {
      grad = grad.clone();
    }
    *out = grad.defined() ? new at::Tensor(std::move(grad)) : nullptr;
  });
}

// The layer whose backward ran last, -1 before any.
GP_API int64_t gp_graph_layer(const Graph* graph) {
  return graph->marks.running();
}

// A copy with the same strides. Gradients of the copy are the tensor's.
GP_API int gp_copy(const at::Tensor* tensor, at::Tensor** out) {
  return gpipe::guarded([&] { *out = new at::Tensor(copy_of(*tensor)); });
}

// The tensor behind its own accumulation node: gradients of its uses are added up there first, as
// they would be on another stage.
GP_API int gp_accumulation_node(const at::Tensor* tensor, at::Tensor** out) {
  return gpipe::guarded([&] { *out = new at::Tensor(accumulation_node_of(*tensor)); });
}

// The tensor as no view; null where it is none.
GP_API int gp_no_view(const at::Tensor* tensor, at::Tensor** out) {
  return gpipe::guarded([&] {
    auto value = no_view(*tensor);
    *out = value.is_same(*tensor) ? nullptr : new at::Tensor(std::move(value));
  });
}

// The outputs of a layer (null: absent) behind their own accumulation nodes, that of the last
// output made first; outputs that share memory have one node, made at the first of them.
GP_API int gp_accumulation_nodes(const at::Tensor* const* outputs, int64_t count,
                                 at::Tensor** out) {
  return gpipe::guarded([&] {
    std::vector<at::Tensor> values(count);
    if (!at::GradMode::is_enabled()) {
      std::transform(outputs, outputs + count, values.begin(), gpipe::tensor_or_undefined);
      give(values, outputs, out);
      return;
    }
    auto groups = gpipe::alias_groups(outputs, count);
    std::reverse(groups.begin(), groups.end());
    for (const auto& group : groups) {
      if (group.size() == 1) {
        values[group.front()] = accumulation_node_of(*outputs[group.front()]);
        continue;
      }
      const auto aliases = gpipe::members(outputs, group);
      const auto carrier = wants_gradient(aliases) ? gpipe::carrier_in_graph(aliases)
                                                   : gpipe::carrier_of(aliases);
      place(gpipe::members_of(accumulation_node_of(carrier), carrier, aliases), group, values);
    }
    give(values, outputs, out);
  });
}

// Values (null: absent), and copies of the `wanted` ones; those that share memory with one
// are parts of its copy. Gradients of copies are the values'.
GP_API int gp_copies(const at::Tensor* const* values, int64_t count, const bool* wanted,
                     at::Tensor** out) {
  return gpipe::guarded([&] {
    std::vector<at::Tensor> all(count);
    for (const auto& group : gpipe::alias_groups(values, count)) {
      auto aliases = gpipe::members(values, group);
      const bool any = std::any_of(group.begin(), group.end(), [&](int64_t i) { return wanted[i]; });
      if (any) {
        const auto carrier = gpipe::carrier_of(aliases);
        aliases = gpipe::members_of(copy_of(carrier), carrier, aliases);
      }
      place(std::move(aliases), group, all);
    }
    give(all, values, out);
  });
}

// How often a tensor's memory was changed in place.
GP_API int gp_changes(const at::Tensor* tensor, int64_t* out) {
  return gpipe::guarded([&] { *out = static_cast<int64_t>(tensor->_version()); });
}

// Moves the accumulated gradient out of a parameter; null where there is none.
GP_API int gp_take_grad(at::Tensor* parameter, at::Tensor** out) {
  return gpipe::guarded([&] {
    auto& grad = parameter->mutable_grad();
    *out = grad.defined() ? new at::Tensor(std::move(grad)) : nullptr;
    grad = at::Tensor();
  });
}

// Sets a parameter's gradient (null: none).
GP_API int gp_set_grad(at::Tensor* parameter, const at::Tensor* grad) {
  return gpipe::guarded([&] { parameter->mutable_grad() = gpipe::tensor_or_undefined(grad); });
}
