// A backward run through a graph that is on the CPU as a whole.
//
// libtorch's engine serves several devices from several threads: for each node it
// sets up and takes down the whole thread-local state of the thread that asked, and
// passes the node through a queue with a lock. For small operations that is half of
// the backward. Here one thread walks through the graph that it made itself, in the
// engine's order (the node made last goes first, parameters before all others), with
// the engine's sums, hooks and checks, so that every gradient has the same bits. No graph
// is made of a backward here: autograd is kept out of libtorch's own formulas, where it
// would look at each operation and record none, and a small parameter's gradient is
// added up without an operation.
//
// Nodes see no current graph task: one that asks whether the graph is kept hears yes
// and copies what it saved, and none can ask for a call at the run's end.
#pragma once

#include "marks.h"

#include <torch/csrc/autograd/function.h>

#include <unordered_map>
#include <vector>

namespace gpipe {

// Nodes that keep what they saved, and what has arrived at each of their outputs.
using Arrivals = std::unordered_map<torch::autograd::Node*, torch::autograd::variable_list>;

// Every node that a root reaches, each before what it leads to.
std::vector<torch::autograd::Node*> reachable(const torch::autograd::edge_list& roots);

// Runs all that `roots` lead to: parameters accumulate, saved tensors are freed. Graphs
// with nodes on other devices are left to libtorch's engine, and so is anomaly mode.
void run_backward(const torch::autograd::edge_list& roots, torch::autograd::variable_list grads,
                  const LayerMarks& marks);

// The same, noting what arrives at the nodes of `arrivals`, which run but free nothing.
// Where that is left to the engine, nothing has run and the answer is no.
bool walk_backward(const torch::autograd::edge_list& roots, torch::autograd::variable_list& grads,
                   Arrivals& arrivals, const LayerMarks& marks);

// A run of libtorch's engine. After an error it leaves nothing behind.
torch::autograd::variable_list run_engine(const torch::autograd::edge_list& roots,
                                          const torch::autograd::variable_list& grads,
                                          bool keep_graph, bool accumulate_grad,
                                          const torch::autograd::edge_list& outputs);

}  // namespace gpipe
