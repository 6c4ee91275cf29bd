#include "onednn.h"
#include "products.h"
#include "shim.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <array>
#include <map>
#include <mutex>
#include <typeinfo>

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::generated::AddmmBackward0;
using torch::autograd::generated::ConvolutionBackward0;
using torch::autograd::generated::MmBackward0;
using torch::autograd::generated::TBackward0;

namespace {

// Below, an operation costs more than what its result is added with; above, a trial would take
// more memory than a stage may have to spare: three times a weight of 16 MiB.
constexpr int64_t kSmallest = 8192;
constexpr int64_t kLargest = int64_t{4} << 20;

thread_local int64_t added = 0;

bool nobody_listens(Node& node) {
  return node.pre_hooks().empty() && node.post_hooks().empty() &&
         node.tensor_pre_hooks().empty() && node.retains_grad_hooks().empty() &&
         node.tensor_post_acc_grad_hooks() == nullptr;
}

bool plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && tensor.device().is_cpu() &&
         tensor.scalar_type() == at::kFloat && tensor.is_contiguous() && !tensor.is_neg();
}

// The first factor, as the forward saved it; none where it is not a tensor of this kind, or where
// a hook brings it, which may do so only once.
std::optional<at::Tensor> factor(const SavedVariable& saved, at::Layout layout) {
  if (saved.has_hooks() || layout != c10::kStrided) {
    return std::nullopt;
  }
  return saved.unpack();
}

std::optional<at::Tensor> first_factor(Node& node) {
  if (typeid(node) == typeid(AddmmBackward0)) {
    auto& addmm = static_cast<AddmmBackward0&>(node);
    return addmm.alpha.equal(1) ? factor(addmm.mat1_, addmm.mat1_layout) : std::nullopt;
  }
  auto& mm = static_cast<MmBackward0&>(node);
  return factor(mm.self_, mm.self_layout);
}

// Two matrices whose product is a weight's gradient, and whose kernels compute it.
struct Factors {
  at::Tensor left, right;
  bool by_onednn;

  at::Tensor product() const { return by_onednn ? gpipe::onednn_product(left, right) : left.mm(right); }

  void add_to(const at::Tensor& sum) const {
    if (by_onednn) {
      gpipe::onednn_add_product(sum, left, right);
    } else {
      const_cast<at::Tensor&>(sum).addmm_(left, right);
    }
  }
};

std::optional<Factors> of_linear(Node& node, bool transposed, const at::Tensor& grad) {
  const auto input = first_factor(node);
  if (!input || !plain(*input) || !plain(grad) || input->dim() != 2 || grad.dim() != 2) {
    return std::nullopt;
  }
  const auto left = (transposed ? grad : *input).t();
  const auto& right = transposed ? *input : grad;
  return Factors{left, right, gpipe::onednn_multiplies(left, right)};
}

std::optional<Factors> of_convolution(Node& node, const at::Tensor& weight, const at::Tensor& grad) {
  auto& convolution = static_cast<ConvolutionBackward0&>(node);
  if (convolution.input_.has_hooks()) {
    return std::nullopt;
  }
  auto found = gpipe::onednn_weight_factors(grad, convolution.input_.unpack(), weight, convolution.stride,
                                            convolution.padding, convolution.dilation, convolution.transposed,
                                            convolution.groups);
  if (!found) {
    return std::nullopt;
  }
  return Factors{std::move(found->first), std::move(found->second), /*by_onednn=*/true};
}

// Whether accumulating within a product gives the same bits as adding its result.
bool tried(const Factors& factors) {
  // A separate generator: the program's must not advance.
  auto numbers = at::detail::createCPUGenerator(/*seed_val=*/20181116);
  auto random = [&](const at::Tensor& like) { return at::empty_like(like).uniform_(-1, 1, numbers); };
  const Factors own{random(factors.left), random(factors.right), factors.by_onednn};
  auto sum = at::empty({own.left.size(0), own.right.size(1)}, at::kFloat).uniform_(-1, 1, numbers);
  const auto direct = sum.clone();
  own.add_to(direct);
  sum.add_(own.product());
  return at::equal(sum, direct);
}

bool same_bits(const Factors& factors) {
  static std::mutex mutex;
  static std::map<std::array<int64_t, 7>, bool> known;
  const auto &left = factors.left, &right = factors.right;
  // Products are cut differently for several threads.
  const std::array<int64_t, 7> key{left.size(0),      left.size(1),     right.size(1),          left.stride(0),
                                   right.stride(0), factors.by_onednn, at::get_num_threads()};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) {
    return found->second;
  }
  return known.emplace(key, tried(factors)).first->second;
}

}  // namespace

namespace gpipe {

std::optional<Product> product_of(Node& node) {
  size_t edge = 0;
  if (typeid(node) == typeid(AddmmBackward0)) {
    edge = 2;
  } else if (typeid(node) == typeid(MmBackward0) || typeid(node) == typeid(ConvolutionBackward0)) {
    edge = 1;
  } else {
    return std::nullopt;
  }
  if (!node.next_edge(edge).is_valid() || !nobody_listens(node)) {
    return std::nullopt;
  }
  Node* end = node.next_edge(edge).function.get();
  Node* transpose = nullptr;
  if (typeid(*end) == typeid(TBackward0) && typeid(node) != typeid(ConvolutionBackward0)) {
    if (!nobody_listens(*end) || !end->next_edge(0).is_valid()) {
      return std::nullopt;
    }
    transpose = end;
    end = end->next_edge(0).function.get();
  }
  if (typeid(*end) != typeid(AccumulateGrad) || !nobody_listens(*end)) {
    return std::nullopt;
  }
  return Product{edge, transpose, end};
}

bool add_product(Node& node, const Product& product, const at::Tensor& grad) {
  const auto& parameter = static_cast<const AccumulateGrad&>(*product.weight).variable;
  const auto& sum = parameter.grad();
  if (!parameter.requires_grad() || !parameter.is_contiguous() || !sum.defined() ||
      sum.numel() < kSmallest || sum.numel() > kLargest ||
      at::autocast::is_autocast_enabled(at::kCPU)) {
    return false;
  }
  const auto factors = typeid(node) == typeid(ConvolutionBackward0)
                           ? of_convolution(node, parameter, grad)
                           : of_linear(node, product.transpose != nullptr, grad);
  if (!factors || !plain(sum) || sum.requires_grad()) {
    return false;
  }
  const auto &left = factors->left, &right = factors->right;
  const auto height = left.size(0), width = right.size(1);
  if (left.size(1) == 0 || right.size(0) != left.size(1) || sum.size(0) != height || sum.numel() != height * width ||
      !same_bits(*factors)) {
    return false;
  }
  factors->add_to(sum.view({height, width}));
  ++added;
  return true;
}

}  // namespace gpipe

// Number of gradients that this thread has added this way.
GP_API int64_t gp_products_added() { return added; }
