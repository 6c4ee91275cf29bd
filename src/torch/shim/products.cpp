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
         tensor.scalar_type() == at::kFloat && tensor.dim() == 2 && tensor.is_contiguous() && !tensor.is_neg();
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

at::Tensor random(at::IntArrayRef shape, at::Generator& numbers) {
  return at::empty(shape, at::kFloat).uniform_(-1, 1, numbers);
}

// Whether `sum.addmm_(left, right)` has the bits of `sum.add_(left.mm(right))`.
bool tried(int64_t rows, int64_t height, int64_t width) {
  // A generator of its own: the program's are not to be moved.
  auto numbers = at::detail::createCPUGenerator(/*seed_val=*/20181116);
  const auto left = random({rows, height}, numbers).t();
  const auto right = random({rows, width}, numbers);
  auto sum = random({height, width}, numbers);
  auto direct = sum.clone();
  direct.addmm_(left, right);
  sum.add_(left.mm(right));
  return at::equal(sum, direct);
}

bool same_bits(int64_t rows, int64_t height, int64_t width) {
  static std::mutex mutex;
  static std::map<std::array<int64_t, 4>, bool> known;
  // Products are cut differently for several threads.
  const std::array<int64_t, 4> key{rows, height, width, at::get_num_threads()};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) {
    return found->second;
  }
  return known.emplace(key, tried(rows, height, width)).first->second;
}

}  // namespace

namespace gpipe {

std::optional<Product> product_of(Node& node) {
  size_t edge = 0;
  if (typeid(node) == typeid(AddmmBackward0)) {
    edge = 2;
  } else if (typeid(node) == typeid(MmBackward0)) {
    edge = 1;
  } else {
    return std::nullopt;
  }
  if (!node.next_edge(edge).is_valid() || !nobody_listens(node)) {
    return std::nullopt;
  }
  Node* end = node.next_edge(edge).function.get();
  Node* transpose = nullptr;
  if (typeid(*end) == typeid(TBackward0)) {
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
  const auto input = first_factor(node);
  if (!input || !plain(*input) || !plain(grad) || !plain(sum) || sum.requires_grad()) {
    return false;
  }
  const auto& left = product.transpose != nullptr ? grad : *input;
  const auto& right = product.transpose != nullptr ? *input : grad;
  const auto height = left.size(1), width = right.size(1);
  const auto rows = left.size(0);
  if (rows == 0 || right.size(0) != rows || sum.size(0) != height || sum.size(1) != width ||
      !same_bits(rows, height, width)) {
    return false;
  }
  sum.addmm_(left.t(), right);
  ++added;
  return true;
}

}  // namespace gpipe

// How many gradients this thread has added so.
GP_API int64_t gp_products_added() { return added; }
