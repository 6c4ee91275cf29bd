// A weight's gradient that is added to the sum of earlier micro-batches as it is computed.
//
// Autograd computes the gradient of a linear layer's weight into a tensor of its own and adds
// that to the sum: what a micro-batch of few rows computes in a millisecond is then read and
// written once more in a fifth of one. The product itself can add (`beta = 1` of BLAS). Its bits
// are the same where it holds the whole product of an element in a register before it adds, which
// is so up to a number of rows that is the processor's and the library's own. So a trial of random
// numbers tells, once for each shape, and other shapes are added as autograd does it. Where oneDNN's
// kernels compute (onednn.h), so do the gradients of convolutions' weights that are products there.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <optional>

namespace gpipe {

// What a node that is about to run computes for a weight alone: the place of the edge, and the
// nodes behind it.
struct Product {
  size_t edge;
  // Between the two, where the weight is used transposed; else null.
  const torch::autograd::Node* transpose;
  const torch::autograd::Node* weight;
};

// The product of a node of libtorch's linear layers and convolutions whose result goes to a parameter's gradient
// and nowhere else, on one way that nobody listens to.
std::optional<Product> product_of(torch::autograd::Node& node);

// Adds it to the parameter's gradient. False, with nothing changed, where that would not have
// the bits of a sum of two tensors, or where there is no gradient yet.
bool add_product(torch::autograd::Node& node, const Product& product, const at::Tensor& grad);

}  // namespace gpipe
