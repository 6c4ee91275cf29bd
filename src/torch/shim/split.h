// The backward of any autograd graph in two passes.
//
// The input pass is one run of the engine that computes the gradients of the
// sinks and, on its way, captures what arrives at every *junction*: a node on the
// way to a sink that has parameters (or computations from parameters alone) on its
// other edges. Afterwards the edges of the junctions that lead towards the sinks
// are cut. The weight pass is then one ordinary run from the captured gradients:
// since nothing flows from one junction to another any more, each sees exactly what
// it saw in the input pass, one gradient for each of its outputs, however often a
// parameter is used and however deep. It is a single run over all junctions, so a
// parameter that several of them share gets its contributions in the order in which
// the joint backward adds them, and the sum has the same bits.
//
// Where there is no sink (a first stage whose input needs no gradient) the line is
// drawn at the outputs of the first layer and at nodes that take something without
// a gradient: any line is exact, this one leaves the weight pass about its share.
#pragma once

#include "shim.h"

#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace gpipe {

// Which layer an autograd node belongs to, and which layer's backward is running.
struct LayerMarks {
  // From now on, the nodes made since the last call are those of `layer`, which
  // computed `output`.
  void add(const at::Tensor& output, int64_t layer);
  int64_t layer_of(const torch::autograd::Node& node) const;

  // Shared with hooks, which live in autograd nodes that a layer may keep alive
  // longer than the graph.
  std::shared_ptr<std::atomic<int64_t>> running = std::make_shared<std::atomic<int64_t>>(-1);
  // The nodes of the first marked layer's outputs.
  std::vector<std::shared_ptr<torch::autograd::Node>> first;

 private:
  int64_t first_layer = -1;
  // Nodes with a smaller number than this are of that layer.
  std::vector<std::pair<uint64_t, int64_t>> ends;
};

class SplitRun {
 public:
  // Returns a gradient (or none) for each sink.
  torch::autograd::variable_list input_pass(
      torch::autograd::edge_list roots, torch::autograd::variable_list grads,
      const std::vector<std::shared_ptr<torch::autograd::Node>>& sinks, const LayerMarks& marks);
  void weight_pass();

 private:
  using Node = torch::autograd::Node;

  // Every node that a root reaches, each before what it leads to.
  std::vector<Node*> reachable(const torch::autograd::edge_list& roots) const;
  // Those of them on the way to a sink, or above the line where there is none.
  std::unordered_set<Node*> input_side(const std::vector<Node*>& nodes,
                                       const std::unordered_set<Node*>& sinks,
                                       const LayerMarks& marks) const;

  torch::autograd::edge_list edges_;
  torch::autograd::variable_list grads_;
};

}  // namespace gpipe
