// A backward run through a graph that is entirely on the CPU.
//
// libtorch's engine serves several devices from several threads: for each node it sets up and
// restores the whole thread-local state of the calling thread, and passes the node through a queue
// with a lock. For small operations that is half of the backward. Here one thread walks through the
// graph that it made itself, in the engine's order (the latest node first, parameters before all
// others), with the engine's sums, hooks and checks, so that every gradient has the same bits. The
// backward records no graph: autograd is kept out of libtorch's own formulas, where it would look
// at each operation and record none, and a small parameter's gradient is added up without an
// operator call.
//
// Nodes see no current graph task: one that asks whether the graph is kept is told yes and copies
// its saved tensors, and none can request a callback at the end of the run.
#pragma once

#include "marks.h"

#include <torch/csrc/autograd/function.h>

#include <unordered_map>
#include <vector>

namespace gpipe {

// Nodes that keep what they saved, and what has arrived at each of their outputs.
using Arrivals = std::unordered_map<torch::autograd::Node*, torch::autograd::variable_list>;

// Every node reachable from a root, each before its targets.
std::vector<torch::autograd::Node*> reachable(const torch::autograd::edge_list& roots);

// Runs all that `roots` lead to: parameters accumulate, saved tensors are freed. Graphs
// with nodes on other devices are left to libtorch's engine, and so is anomaly mode.
void run_backward(const torch::autograd::edge_list& roots, torch::autograd::variable_list grads,
                  const LayerMarks& marks);

// The same, recording what arrives at the nodes of `arrivals`, which run but free nothing. Returns
// false, without running anything, if the engine has to do it.
bool walk_backward(const torch::autograd::edge_list& roots, torch::autograd::variable_list& grads,
                   Arrivals& arrivals, const LayerMarks& marks);

// A run of libtorch's engine. After an error it leaves nothing behind.
torch::autograd::variable_list run_engine(const torch::autograd::edge_list& roots,
                                          const torch::autograd::variable_list& grads,
                                          bool keep_graph, bool accumulate_grad,
                                          const torch::autograd::edge_list& outputs);

}  // namespace gpipe
