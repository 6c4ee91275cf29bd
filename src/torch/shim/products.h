// Weight gradients that are added to the sum of earlier micro-batches as they are computed.
//
// Autograd computes the gradient of a linear layer's weight into a new tensor and adds that to the
// sum: the result of a millisecond's work for a micro-batch of few rows is read and written once
// more in a fifth of one. The product itself can add (`beta = 1` of BLAS). Its bits are the same if
// it holds the whole product of an element in a register before adding, which is so up to a number
// of rows that depends on processor and library. So a trial with random numbers decides, once for
// each shape, and other shapes are added as autograd does. If oneDNN's kernels compute (onednn.h),
// this also applies to gradients of convolutions' weights that are products there.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <optional>

namespace gpipe {

// The part of a node about to run that computes only a weight's gradient: the index of the edge,
// and the nodes after it.
struct Product {
  size_t edge;
  // Between the two, where the weight is used transposed; else null.
  const torch::autograd::Node* transpose;
  const torch::autograd::Node* weight;
};

// The product of a node of libtorch's linear layers and convolutions whose result goes only to a
// parameter's gradient, on a single path without hooks.
std::optional<Product> product_of(torch::autograd::Node& node);

// Adds it to the parameter's gradient. False, with nothing changed, where that would not have
// the bits of a sum of two tensors, or where there is no gradient yet.
bool add_product(torch::autograd::Node& node, const Product& product, const at::Tensor& grad);

}  // namespace gpipe
