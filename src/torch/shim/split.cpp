#include "split.h"
#include "walk.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::FunctionPostHook;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// Frees what a node saved as soon as it has run: in the input pass for all nodes
// but the junctions, as a backward that keeps no graph does for all.
struct ReleaseAfter : public FunctionPostHook {
  explicit ReleaseAfter(Node* node) : node(node) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    node->release_variables();
    return outputs;
  }

  // The hook lives in the node.
  Node* node;
};

// Takes a gradient that is not wanted.
struct Discard : public Node {
  variable_list apply(variable_list&&) override { return {}; }
  std::string name() const override { return "GpipeDiscard"; }
};

// Nodes whose kernel does not survive being asked for the weights' gradients alone:
// libtorch 2.11's group norm on the CPU writes to the missing gradient of an input
// in channels-last layout. Their weight pass computes the input's once more.
bool must_run_whole(const Node& node) { return node.name() == "NativeGroupNormBackward0"; }

// All places that store an edge of a node. The node of a write into a view contains another node,
// that of the written values, and checks that both lead to the same places.
std::vector<Edge*> places_of(Node& node, size_t edge) {
  std::vector<Edge*> places{&node.next_edges().at(edge)};
  const auto* write = dynamic_cast<const torch::autograd::CopySlices*>(&node);
  if (write != nullptr && write->fn != nullptr) {
    places.push_back(&write->fn->next_edges().at(edge));
  }
  return places;
}

// Replacement for the target of `edge`.
Edge discard(const Edge& edge) {
  std::shared_ptr<Discard> node(new Discard(), torch::autograd::deleteNode);
  // The engine compares an arriving gradient with the metadata of its node.
  const auto& there = edge.function->input_metadata(edge.input_nr);
  node->add_input_metadata(there.options(), there.shape_as_dim_vector(), there.is_tensor_subclass(),
                           there.is_nested_tensor(), there.grad_dtype());
  return Edge(std::move(node), 0);
}

template <typename Wanted>
bool any_edge(const Node& node, Wanted&& wanted) {
  const auto& edges = node.next_edges();
  return std::any_of(edges.begin(), edges.end(), wanted);
}

// The input pass by libtorch's engine, which runs only what leads to `ports`; the
// nodes that are `passed` on the way are not needed again.
void run_to(const std::vector<std::shared_ptr<Node>>& ports, const std::vector<Node*>& passed,
            const edge_list& roots, const variable_list& grads, gpipe::Arrivals& arrivals) {
  for (auto* node : passed) {
    node->add_post_hook(std::make_unique<ReleaseAfter>(node));
  }
  edge_list wanted;
  for (const auto& port : ports) {
    for (uint32_t i = 0; i < port->num_inputs(); ++i) {
      wanted.emplace_back(port, i);
    }
  }
  auto captured = gpipe::run_engine(roots, grads, /*keep_graph=*/true, /*accumulate_grad=*/false, wanted);
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto& arrived = arrivals.at(wanted[i].function.get());
    arrived.resize(wanted[i].function->num_inputs());
    arrived[wanted[i].input_nr] = std::move(captured[i]);
  }
}

}  // namespace

namespace gpipe {

std::unordered_set<Node*> SplitRun::input_side(const std::vector<Node*>& nodes,
                                               const std::unordered_set<Node*>& sinks,
                                               const LayerMarks& marks) const {
  std::unordered_set<Node*> side;
  std::unordered_set<const Node*> line;
  const bool to_sinks =
      std::any_of(nodes.begin(), nodes.end(), [&](Node* node) { return sinks.count(node) > 0; });
  if (!to_sinks) {
    for (const auto& node : marks.first) {
      line.insert(node.get());
    }
    for (auto* node : nodes) {
      auto dead = [](const Edge& edge) { return !edge.is_valid(); };
      auto live = [](const Edge& edge) { return edge.is_valid(); };
      if (any_edge(*node, dead) && any_edge(*node, live)) {
        line.insert(node);
      }
    }
  }
  // A node's targets come after it, so going backwards all of them are known.
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    auto leads = [&](const Edge& edge) {
      return side.count(edge.function.get()) > 0 || sinks.count(edge.function.get()) > 0;
    };
    if (line.count(*node) > 0 || any_edge(**node, leads)) {
      side.insert(*node);
    }
  }
  return side;
}

variable_list SplitRun::input_pass(edge_list roots, variable_list grads,
                                   const std::vector<std::shared_ptr<Node>>& sinks,
                                   const LayerMarks& marks) {
  std::unordered_set<Node*> ends;
  for (const auto& sink : sinks) {
    ends.insert(sink.get());
  }
  const auto nodes = reachable(roots);
  const auto side = input_side(nodes, ends, marks);
  auto towards_sinks = [&](const Edge& edge) {
    return side.count(edge.function.get()) > 0 || ends.count(edge.function.get()) > 0;
  };
  auto towards_weights = [&](const Edge& edge) { return edge.is_valid() && !towards_sinks(edge); };

  // Handles to the nodes on the input side, by which edges name them.
  std::unordered_map<Node*, std::shared_ptr<Node>> handles;
  auto keep = [&](const Edge& edge) {
    if (side.count(edge.function.get()) > 0) {
      handles.emplace(edge.function.get(), edge.function);
    }
  };
  std::for_each(roots.begin(), roots.end(), keep);
  for (auto* node : side) {
    std::for_each(node->next_edges().begin(), node->next_edges().end(), keep);
  }

  Arrivals arrivals;
  std::vector<std::shared_ptr<Node>> ports;
  std::unordered_set<Node*> reached(nodes.begin(), nodes.end());
  for (const auto& sink : sinks) {
    if (reached.count(sink.get()) > 0 && arrivals.try_emplace(sink.get()).second) {
      ports.push_back(sink);
    }
  }
  const auto received = ports.size();
  std::vector<Node*> passed, junctions;
  for (auto* node : nodes) {
    if (side.count(node) == 0) {
      continue;
    }
    if (any_edge(*node, towards_weights)) {
      arrivals.try_emplace(node);
      ports.push_back(handles.at(node));
      junctions.push_back(node);
    } else {
      passed.push_back(node);
    }
  }

  edge_list inner;
  variable_list inner_grads;
  edges_.clear();
  grads_.clear();
  for (size_t i = 0; i < roots.size(); ++i) {
    // A root that depends on parameters alone, or is a sink itself.
    bool is_inner = towards_sinks(roots[i]);
    (is_inner ? inner : edges_).push_back(roots[i]);
    (is_inner ? inner_grads : grads_).push_back(std::move(grads[i]));
  }
  if (!inner.empty() && !ports.empty()) {
    std::vector<std::pair<Edge*, Edge>> held;
    for (size_t i = received; i < ports.size(); ++i) {
      for (size_t e = 0; e < ports[i]->num_outputs(); ++e) {
        if (towards_weights(ports[i]->next_edge(e))) {
          for (auto* place : places_of(*ports[i], e)) {
            held.emplace_back(place, std::exchange(*place, Edge()));
          }
        }
      }
    }
    bool walked = false;
    {
      // Also if the walk throws.
      auto put_back = c10::make_scope_exit([&held] {
        for (auto& [place, edge] : held) {
          *place = std::move(edge);
        }
      });
      walked = walk_backward(inner, inner_grads, arrivals, marks);
    }
    if (!walked) {
      // In the weight pass nothing arrives at the outputs whose hooks would report the layer.
      marks.listen(marks.has_hooks() ? junctions : nodes);
      run_to(ports, passed, inner, inner_grads, arrivals);
    }
  }

  variable_list result;
  for (const auto& sink : sinks) {
    const auto arrived = arrivals.find(sink.get());
    const bool any = arrived != arrivals.end() && !arrived->second.empty();
    result.push_back(any ? std::move(arrived->second[0]) : at::Tensor());
  }
  for (size_t i = received; i < ports.size(); ++i) {
    auto& arrived = arrivals.at(ports[i].get());
    for (size_t input = 0; input < arrived.size(); ++input) {
      // No gradient arrived for an unused output, and an undefined gradient is not allowed as a
      // root of the weight pass.
      if (arrived[input].defined()) {
        edges_.emplace_back(ports[i], static_cast<uint32_t>(input));
        grads_.push_back(std::move(arrived[input]));
      }
    }
    const bool whole = must_run_whole(*ports[i]);
    for (size_t e = 0; e < ports[i]->num_outputs(); ++e) {
      if (towards_sinks(ports[i]->next_edge(e))) {
        const auto end = whole ? discard(ports[i]->next_edge(e)) : Edge();
        for (auto* place : places_of(*ports[i], e)) {
          *place = end;
        }
      }
    }
  }
  return result;
}

void SplitRun::weight_pass(const LayerMarks& marks) {
  auto edges = std::exchange(edges_, {});
  auto grads = std::exchange(grads_, {});
  if (!edges.empty()) {
    run_backward(edges, std::move(grads), marks);
  }
}

}  // namespace gpipe
