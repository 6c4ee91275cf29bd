#include "marks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <ATen/SequenceNumber.h>

#include <algorithm>

using torch::autograd::FunctionPreHook;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// Says which layer's backward is running.
struct Announce : public FunctionPreHook {
  Announce(std::shared_ptr<std::atomic<int64_t>> running, int64_t layer)
      : running(std::move(running)), layer(layer) {}

  variable_list operator()(const variable_list& grads) override {
    running->store(layer, std::memory_order_relaxed);
    return grads;
  }

  std::shared_ptr<std::atomic<int64_t>> running;
  int64_t layer;
};

}  // namespace

namespace gpipe {

void LayerMarks::add(const at::Tensor& output, int64_t layer) {
  // A leaf is a parameter that the layer passes on: it has no backward of its
  // own, and hooks on it would outlive the micro-batch.
  if (!output.defined() || !output.requires_grad() || output.is_leaf()) {
    return;
  }
  if (!output.is_cpu()) {
    has_hooks_ = true;
    auto now = running_;
    output.register_hook(
        [now, layer](const at::Tensor&) { now->store(layer, std::memory_order_relaxed); });
  }
  ends_.emplace_back(at::sequence_number::peek(), layer);
  if (first_layer_ < 0 || first_layer_ == layer) {
    first_layer_ = layer;
    first.push_back(output.grad_fn());
  }
}

void LayerMarks::next(const Node& node) const {
  const auto layer = layer_of(node);
  if (layer >= 0) {
    running_->store(layer, std::memory_order_relaxed);
  }
}

void LayerMarks::listen(const std::vector<Node*>& nodes) const {
  for (auto* node : nodes) {
    const auto layer = layer_of(*node);
    if (layer >= 0) {
      node->add_pre_hook(std::make_unique<Announce>(running_, layer));
    }
  }
}

int64_t LayerMarks::layer_of(const Node& node) const {
  const auto end =
      std::upper_bound(ends_.begin(), ends_.end(), node.sequence_nr(),
                       [](uint64_t number, const auto& end) { return number < end.first; });
  return end == ends_.end() ? -1 : end->second;
}

}  // namespace gpipe
