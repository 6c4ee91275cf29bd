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

#include "marks.h"

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <unordered_set>
#include <vector>

namespace gpipe {

class SplitRun {
 public:
  // Returns a gradient (or none) for each sink.
  torch::autograd::variable_list input_pass(
      torch::autograd::edge_list roots, torch::autograd::variable_list grads,
      const std::vector<std::shared_ptr<torch::autograd::Node>>& sinks, const LayerMarks& marks);
  void weight_pass(const LayerMarks& marks);

 private:
  using Node = torch::autograd::Node;

  // Selects the nodes on the way to a sink, or above the line where there is none.
  std::unordered_set<Node*> input_side(const std::vector<Node*>& nodes,
                                       const std::unordered_set<Node*>& sinks,
                                       const LayerMarks& marks) const;

  torch::autograd::edge_list edges_;
  torch::autograd::variable_list grads_;
};

}  // namespace gpipe
