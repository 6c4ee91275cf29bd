#include "walk.h"
#include "products.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::InputBuffer;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

constexpr uint32_t kNowhere = UINT32_MAX;

// Whether the node is one of libtorch's own formulas, which never record a graph of their
// operations: autograd need not look at each of them.
bool is_formula(const Node& node) {
  constexpr std::string_view kFormulas = "N5torch8autograd9generated";
  return std::string_view(typeid(node).name()).substr(0, kFormulas.size()) == kFormulas;
}

// Small enough that libtorch adds it up on one thread, and that what an operation costs
// outweighs its wider instructions.
constexpr int64_t kSmall = 8192;

bool plain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.device().is_cpu() &&
         tensor.scalar_type() == at::kFloat && !tensor.is_neg() && tensor.numel() <= kSmall &&
         tensor.is_non_overlapping_and_dense();
}

// Does the additions of a parameter's node for one more gradient without an operator call. False if
// the node would do more.
bool add_small(const Node& node, const variable_list& inputs) {
  if (typeid(node) != typeid(AccumulateGrad) || inputs.size() != 1 || !inputs[0].defined()) {
    return false;
  }
  const auto& parameter = static_cast<const AccumulateGrad&>(node).variable;
  const auto& more = inputs[0];
  const auto& sum = parameter.grad();
  if (!parameter.requires_grad() || node.tensor_post_acc_grad_hooks() != nullptr ||
      !sum.defined() || !plain(sum) || !plain(more) || sum.sizes() != more.sizes() ||
      sum.strides() != more.strides() || sum.requires_grad() || sum.is_same(more)) {
    return false;
  }
  auto* to = sum.mutable_data_ptr<float>();
  const auto* from = more.const_data_ptr<float>();
  const auto count = sum.numel();
  for (int64_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
  sum.unsafeGetTensorImpl()->bump_version();
  return true;
}

struct Pending {
  explicit Pending(Node* node) : node(node) {}

  Node* node;
  // Index of its first edge in `Walk::targets_`.
  size_t first_target = 0;
  // Edges into the node along which nothing has arrived yet.
  uint32_t missing = 0;
  variable_list inputs;
};

class Walk {
 public:
  explicit Walk(const gpipe::LayerMarks& marks) : marks_(marks) {}

  // Finds all nodes; false where this is not for one thread alone.
  bool prepare(const edge_list& roots) {
    // The graphs of a stage's micro-batches are of one size.
    thread_local size_t usual = 0;
    pending_.reserve(usual);
    places_.reserve(usual);
    targets_.reserve(2 * usual);
    for (const auto& root : roots) {
      ++pending_[place(root.function.get())].missing;
    }
    for (size_t i = 0; i < pending_.size(); ++i) {
      Node* node = pending_[i].node;
      if (node->device().type() != at::kCPU) {
        return false;
      }
      pending_[i].first_target = targets_.size();
      for (const auto& edge : node->next_edges()) {
        auto target = kNowhere;
        if (edge.is_valid()) {
          target = place(edge.function.get());
          ++pending_[target].missing;
        }
        targets_.push_back(target);
      }
    }
    usual = pending_.size();
    return true;
  }

  void run(const edge_list& roots, variable_list grads, gpipe::Arrivals& arrivals) {
    for (size_t i = 0; i < roots.size(); ++i) {
      arrive(places_.at(roots[i].function.get()), roots[i].input_nr, std::move(grads[i]));
    }
    while (!ready_.empty()) {
      const auto number = ready_.top().second;
      ready_.pop();
      Node& node = *pending_[number].node;
      marks_.next(node);
      const auto first = pending_[number].first_target;
      auto inputs = std::move(pending_[number].inputs);
      const auto noted = arrivals.find(&node);
      const bool keep = noted != arrivals.end();
      if (keep) {
        noted->second = inputs;
        if (leads_nowhere(node)) {
          continue;
        }
      }
      const auto product = keep ? std::nullopt : added_product(number, inputs);
      auto outputs = call_without(product, node, std::move(inputs), keep);
      if (!keep) {
        node.release_variables();
      }
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (targets_[first + i] != kNowhere) {
          arrive(targets_[first + i], node.next_edge(i).input_nr, std::move(outputs[i]));
        }
      }
    }
  }

 private:
  uint32_t place(Node* node) {
    auto [entry, is_new] = places_.emplace(node, static_cast<uint32_t>(pending_.size()));
    if (is_new) {
      pending_.emplace_back(node);
    }
    return entry->second;
  }

  // The edge for which there is nothing left to compute, its product having been added.
  std::optional<size_t> added_product(uint32_t number, const variable_list& inputs) {
    Node& node = *pending_[number].node;
    const auto product = gpipe::product_of(node);
    if (!product || inputs.empty()) {
      return std::nullopt;
    }
    auto on_its_own = [&](const Node* there) {
      return there == nullptr || pending_[places_.at(const_cast<Node*>(there))].missing == 1;
    };
    // Nothing may have arrived before it either: gradients that arrive together are added as one
    // sum.
    const auto& weight = pending_[places_.at(const_cast<Node*>(product->weight))];
    const bool first = weight.inputs.empty() || !weight.inputs[0].defined();
    if (!first || !on_its_own(product->transpose) || !on_its_own(product->weight)) {
      return std::nullopt;
    }
    return gpipe::add_product(node, *product, inputs[0]) ? std::optional(product->edge) : std::nullopt;
  }

  void arrive(uint32_t number, uint32_t input, at::Tensor&& grad) {
    auto& there = pending_[number];
    there.inputs.resize(there.node->num_inputs());
    auto& sum = there.inputs.at(input);
    if (!sum.defined()) {
      sum = std::move(grad);
    } else if (grad.defined()) {
      // The engine's own sum: in place where it is in place there.
      InputBuffer both(1);
      both.add(0, std::move(sum), std::nullopt, std::nullopt, there.node);
      both.add(0, std::move(grad), std::nullopt, std::nullopt, there.node);
      sum = std::move(both.buffer[0]);
    }
    if (--there.missing == 0) {
      ready_.emplace(there.node->sequence_nr(), number);
    }
  }

  static bool leads_nowhere(const Node& node) {
    const auto& edges = node.next_edges();
    return std::none_of(edges.begin(), edges.end(), [](const Edge& e) { return e.is_valid(); });
  }

  static variable_list compute(Node& node, variable_list inputs) {
    if (is_formula(node)) {
      at::AutoDispatchBelowADInplaceOrView plainly;
      return node(std::move(inputs));
    }
    return add_small(node, inputs) ? variable_list() : node(std::move(inputs));
  }

  // Sums over broadcast dimensions, and type conversions, need no graph here either.
  static void check(const Node& node, variable_list& outputs) {
    at::AutoDispatchBelowADInplaceOrView plainly;
    torch::autograd::validate_outputs(node.next_edges(), outputs, [&](const std::string& message) {
      return "Function " + node.name() + " returned an " + message;
    });
  }

  // Runs the node as if its result along `edge` were not wanted.
  static variable_list call_without(std::optional<size_t> edge, Node& node, variable_list inputs, bool keep) {
    if (!edge) {
      return call(node, std::move(inputs), keep);
    }
    auto held = std::exchange(node.next_edges()[*edge], Edge());
    auto put_back = c10::make_scope_exit([&] { node.next_edges()[*edge] = std::move(held); });
    return call(node, std::move(inputs), keep);
  }

  static variable_list call(Node& node, variable_list inputs, bool keep) {
    for (const auto& hook : node.tensor_pre_hooks()) {
      inputs = (*hook)(inputs);
    }
    for (const auto& retained : node.retains_grad_hooks()) {
      inputs = (*retained.second)(inputs);
    }
    for (const auto& hook : node.pre_hooks()) {
      inputs = (*hook)(inputs);
    }
    if (!keep) {
      node.will_release_variables();
    }
    // Without hooks that need it later, a parameter may keep a gradient as it is.
    const auto kept = node.post_hooks().empty() ? variable_list() : inputs;
    auto outputs = compute(node, std::move(inputs));
    check(node, outputs);
    for (const auto& hook : node.post_hooks()) {
      outputs = (*hook)(outputs, kept);
    }
    return outputs;
  }

  const gpipe::LayerMarks& marks_;
  std::vector<Pending> pending_;
  ska::flat_hash_map<Node*, uint32_t> places_;
  std::vector<uint32_t> targets_;
  std::priority_queue<std::pair<uint64_t, uint32_t>> ready_;
};

// Comes after all others in the engine's order, and does nothing.
struct Last : Node {
  Last() : Node(/*sequence_nr=*/0) {}
  variable_list apply(variable_list&& /*grads*/) override { return {}; }
};

}  // namespace

namespace gpipe {

std::vector<Node*> reachable(const edge_list& roots) {
  std::vector<Node*> order;
  std::unordered_set<Node*> seen;
  // Depth first without recursion: a deep model must not overflow the stack.
  std::vector<std::pair<Node*, size_t>> path;
  for (const auto& root : roots) {
    if (!seen.insert(root.function.get()).second) {
      continue;
    }
    path.emplace_back(root.function.get(), 0);
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next == node->num_outputs()) {
        order.push_back(node);
        path.pop_back();
        continue;
      }
      auto* child = node->next_edge(next++).function.get();
      if (child != nullptr && seen.insert(child).second) {
        path.emplace_back(child, 0);
      }
    }
  }
  std::reverse(order.begin(), order.end());
  return order;
}

bool walk_backward(const edge_list& roots, variable_list& grads, Arrivals& arrivals,
                   const LayerMarks& marks) {
  Walk walk(marks);
  if (torch::autograd::AnomalyMode::is_enabled() || !walk.prepare(roots)) {
    return false;
  }
  torch::autograd::validate_outputs(roots, grads,
                                    [](const std::string& message) { return message; });
  at::AutoGradMode no_graph(false);
  walk.run(roots, std::move(grads), arrivals);
  return true;
}

variable_list run_engine(const edge_list& roots, const variable_list& grads, bool keep_graph,
                         bool accumulate_grad, const edge_list& outputs) {
  auto& engine = torch::autograd::Engine::get_default_engine();
  try {
    return engine.execute(roots, grads, keep_graph, /*create_graph=*/false, accumulate_grad, outputs);
  } catch (...) {
    // After an error, unfinished nodes without a device (accumulation nodes) stay in a queue of
    // this thread, and hold the graph, until its next run takes them out, if they come before the
    // nodes of that run. The node of this run comes last.
    const auto none = at::zeros({});
    const auto last = std::make_shared<Last>();
    last->add_input_metadata(none);
    engine.execute({Edge(last, 0)}, {none}, /*keep_graph=*/false, /*create_graph=*/false,
                   /*accumulate_grad=*/true, {});
    throw;
  }
}

void run_backward(const edge_list& roots, variable_list grads, const LayerMarks& marks) {
  Arrivals none;
  if (walk_backward(roots, grads, none, marks)) {
    return;
  }
  if (!marks.has_hooks()) {
    marks.listen(reachable(roots));
  }
  run_engine(roots, grads, /*keep_graph=*/false, /*accumulate_grad=*/true, {});
}

}  // namespace gpipe
