// The layer of each autograd node, and the layer whose backward is running.
//
// Graphs on the CPU are walked here, and the walk reports each node that it runs next. libtorch's
// engine, which runs all others, reports nothing: hooks do.
#pragma once

#include "shim.h"

#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace gpipe {

class LayerMarks {
 public:
  // Marks the nodes made since the last call as those of `layer`, which computed `output`.
  void add(const at::Tensor& output, int64_t layer);

  // The node runs next.
  void next(const torch::autograd::Node& node) const;

  // The engine is going to run these nodes.
  void listen(const std::vector<torch::autograd::Node*>& nodes) const;

  // The layer whose backward ran last, -1 before any.
  int64_t running() const { return running_->load(std::memory_order_relaxed); }

  // Whether outputs on other devices than the CPU have hooks already.
  bool has_hooks() const { return has_hooks_; }

  // The nodes of the first marked layer's outputs.
  std::vector<std::shared_ptr<torch::autograd::Node>> first;

 private:
  int64_t layer_of(const torch::autograd::Node& node) const;

  // Shared with hooks, which live in autograd nodes that a layer may keep alive
  // longer than the graph.
  std::shared_ptr<std::atomic<int64_t>> running_ = std::make_shared<std::atomic<int64_t>>(-1);
  int64_t first_layer_ = -1;
  bool has_hooks_ = false;
  // Nodes with a smaller number than this are of that layer; ascending.
  std::vector<std::pair<uint64_t, int64_t>> ends_;
};

}  // namespace gpipe
