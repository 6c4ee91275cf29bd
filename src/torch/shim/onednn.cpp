// Kernels of oneDNN for products and convolutions on the CPU, in place of those that libtorch takes.
//
// libtorch computes products with MKL, which on processors of other makers has kernels for AVX2
// only, and with one intra-op thread it leaves convolutions with kernels of 1 x 1 to MKL too.
// oneDNN's kernels are made for what the processor can do. libtorch has them behind an operator
// that its compiler calls (`mkldnn::_linear_pointwise`) and behind `mkldnn_convolution`; autograd's
// formulas, though, choose again in each backward.
//
// So a dispatch key that nothing else uses is switched on for a thread, below autograd: every
// operator falls through it but for products of two matrices and convolutions, forward and
// backward. What they do not fit (other types of numbers, groups, few rows) is libtorch's, as
// without the key. The results depend on shapes and layouts, and on nothing else: neither on
// addresses nor on what a thread has computed before.
#include "onednn.h"
#include "shim.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

namespace {

// Another project's, which is not here: no kernel is registered for it, and it comes below autograd.
constexpr auto KEY = c10::DispatchKey::Fake;
constexpr auto kBelow = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);

// Products of fewer multiplications are left to libtorch on this thread.
thread_local int64_t least = 0;

// Products, convolutions and backwards of these that oneDNN has computed for this thread.
thread_local int64_t computed = 0;

bool plain(const Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && tensor.device().is_cpu() &&
         tensor.scalar_type() == at::kFloat && !tensor.is_neg() && !tensor.is_nested();
}

// Neither this nor autograd looks at what oneDNN's own operators call. With gradients switched
// on they would choose kernels for training, whose bits may be others than those of inference.
struct Plainly {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  c10::impl::ExcludeDispatchKeyGuard not_again{KEY};
  at::NoGradGuard no_graph;
};

using Linear = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, std::string_view,
                      c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

const c10::TypedOperatorHandle<Linear>& linear_operator() {
  static const auto found = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                .typed<Linear>();
  return found;
}

// [m, k] and [n, k]: [m, n], the products of their rows, plus `bias` [n].
Tensor linear(const Tensor& input, const Tensor& weight, const OptionalTensor& bias) {
  static const c10::List<std::optional<at::Scalar>> none;
  return linear_operator().call(input, weight, bias, "none", none, std::nullopt);
}

std::optional<Tensor> product(const Tensor& left, const Tensor& right, const OptionalTensor& bias) {
  if (!plain(left) || !plain(right) || left.dim() != 2 || right.dim() != 2 ||
      left.size(1) != right.size(0)) {
    return std::nullopt;
  }
  const auto rows = left.size(0), inner = left.size(1), columns = right.size(1);
  if (std::min({rows, inner, columns}) < 2 || rows * inner * columns < least) {
    return std::nullopt;
  }
  Plainly plainly;
  ++computed;
  const auto weight = right.t();
  const bool dense = weight.is_contiguous() || right.is_contiguous();
  return linear(left.contiguous(), dense ? weight : weight.contiguous(), bias);
}

Tensor mm(c10::DispatchKeySet keys, const Tensor& left, const Tensor& right) {
  if (auto found = product(left, right, std::nullopt)) {
    return *std::move(found);
  }
  return at::_ops::mm::redispatch(keys & kBelow, left, right);
}

Tensor addmm(c10::DispatchKeySet keys, const Tensor& bias, const Tensor& left, const Tensor& right,
             const at::Scalar& beta, const at::Scalar& alpha) {
  const bool is_linear = plain(bias) && bias.dim() == 1 && right.dim() == 2 &&
                         bias.size(0) == right.size(1) && beta.equal(1) && alpha.equal(1);
  if (is_linear) {
    if (auto found = product(left, right, bias.contiguous())) {
      return *std::move(found);
    }
  }
  return at::_ops::addmm::redispatch(keys & kBelow, bias, left, right, beta, alpha);
}

// What a convolution of images is given besides tensors.
struct Window {
  std::array<int64_t, 2> stride, padding, dilation;
};

std::optional<std::array<int64_t, 2>> pair(c10::SymIntArrayRef list) {
  const auto numbers = c10::asIntArrayRefSlowOpt(list);
  if (!numbers || numbers->size() != 2) {
    return std::nullopt;
  }
  return std::array<int64_t, 2>{(*numbers)[0], (*numbers)[1]};
}

// The window of a convolution that oneDNN is to compute: of single-precision images, without groups.
// What is wrong with others is libtorch's to say.
std::optional<Window> window(const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
                             c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                             const c10::SymInt& groups) {
  if (transposed || groups != 1 || !plain(input) || !plain(weight) || input.dim() != 4 || weight.dim() != 4 ||
      input.numel() == 0 || weight.numel() == 0 || input.size(1) != weight.size(1)) {
    return std::nullopt;
  }
  const auto strides = pair(stride), paddings = pair(padding), dilations = pair(dilation);
  if (!strides || !paddings || !dilations) {
    return std::nullopt;
  }
  const Window found{*strides, *paddings, *dilations};
  for (int64_t i = 0; i < 2; ++i) {
    const auto kernel = found.dilation[i] * (weight.size(2 + i) - 1) + 1;
    if (found.stride[i] <= 0 || found.padding[i] < 0 || found.dilation[i] <= 0 ||
        input.size(2 + i) + 2 * found.padding[i] < kernel) {
      return std::nullopt;
    }
  }
  return found;
}

Tensor convolution(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                   bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const bool has_bias = bias.has_value() && bias->defined();
  const auto found = window(input, weight, stride, padding, dilation, transposed, groups);
  if (!found || (has_bias && (!plain(*bias) || bias->dim() != 1 || bias->size(0) != weight.size(0)))) {
    return at::_ops::convolution::redispatch(keys & kBelow, input, weight, bias, stride, padding, dilation, transposed,
                                             output_padding, std::move(groups));
  }
  Plainly plainly;
  ++computed;
  return at::mkldnn_convolution(input, weight, has_bias ? OptionalTensor(bias->contiguous()) : std::nullopt,
                                found->padding, found->stride, found->dilation, 1);
}

using RowCopier = void (*)(float* to, const float* from, int64_t width, int64_t stride);

template <int64_t kWidth>
void copy_row(float* to, const float* from, int64_t /*width*/, int64_t /*stride*/) {
  std::memcpy(to, from, kWidth * sizeof(float));
}

void gather_row(float* to, const float* from, int64_t width, int64_t stride) {
  for (int64_t i = 0; i < width; ++i) {
    to[i] = from[i * stride];
  }
}

// The widths of small images have copies without a call.
RowCopier row_copier(int64_t width, int64_t stride) {
  if (stride != 1) {
    return &gather_row;
  }
  switch (width) {
    case 2: return &copy_row<2>;
    case 4: return &copy_row<4>;
    case 8: return &copy_row<8>;
    case 16: return &copy_row<16>;
    case 32: return &copy_row<32>;
    default: return &gather_row;
  }
}

// Images [b, c, h, w] with a border of zeros.
Tensor padded(const Tensor& images, const std::array<int64_t, 2>& padding) {
  const auto input = images.contiguous();
  if (padding[0] == 0 && padding[1] == 0) {
    return input;
  }
  const auto height = input.size(2), width = input.size(3);
  auto out = at::zeros({input.size(0), input.size(1), height + 2 * padding[0], width + 2 * padding[1]}, input.options());
  out.narrow(2, padding[0], height).narrow(3, padding[1], width).copy_(input);
  return out;
}

// What each weight is multiplied with, [c · kernel, b · output]: for each element of a kernel the
// elements of the images that it meets ("im2col").
Tensor columns(const Tensor& images, at::IntArrayRef kernel, at::IntArrayRef output, const Window& window) {
  const auto input = padded(images, window.padding);
  const auto batch = input.size(0), channels = input.size(1), row = input.size(3);
  const auto plane = input.size(2) * row, image = channels * plane;
  const auto height = output[0], width = output[1], stride = window.stride[1];
  auto out = at::empty({channels * kernel[0] * kernel[1], batch * height * width}, input.options());
  const auto copy = row_copier(width, stride);
  auto* to = out.mutable_data_ptr<float>();
  const auto* first = input.const_data_ptr<float>();
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t y = 0; y < kernel[0]; ++y) {
      for (int64_t x = 0; x < kernel[1]; ++x) {
        const auto* corner = first + c * plane + y * window.dilation[0] * row + x * window.dilation[1];
        for (int64_t b = 0; b < batch; ++b) {
          for (int64_t i = 0; i < height; ++i, to += width) {
            copy(to, corner + b * image + i * window.stride[0] * row, width, stride);
          }
        }
      }
    }
  }
  return out;
}

// Whether the gradient of the weight is faster as one product over all places of all images.
// oneDNN's own kernel for it writes the gradient in blocks and brings that to rows afterwards,
// which takes longer than the product where the weight is larger than what it meets.
bool as_product(const Tensor& grad, const Tensor& weight) {
  const auto places = grad.numel() / grad.size(1);
  return weight.size(2) * weight.size(3) == 1 || places <= weight.size(0);
}

Tensor weight_gradient(const Tensor& grad, const Tensor& input, const Tensor& weight, const Window& window) {
  const auto kernel = weight.sizes().slice(2), output = grad.sizes().slice(2);
  const auto rows = grad.transpose(0, 1).reshape({weight.size(0), -1});
  return linear(rows, columns(input, kernel, output, window), std::nullopt).view(weight.sizes());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    c10::DispatchKeySet keys, const Tensor& grad, const Tensor& input, const Tensor& weight,
    at::OptionalSymIntArrayRef bias_sizes, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> mask) {
  const auto found = window(input, weight, stride, padding, dilation, transposed, groups);
  if (!found || !plain(grad) || grad.dim() != 4) {
    return at::_ops::convolution_backward::redispatch(keys & kBelow, grad, input, weight, bias_sizes, stride, padding,
                                                      dilation, transposed, output_padding, std::move(groups), mask);
  }
  using OneDnn = at::native::mkldnn_convolution_backward_stub_DECLARE_DISPATCH_type;
  Plainly plainly;
  ++computed;
  // One by one: a split backward asks for one without the other.
  auto by_onednn = [&](bool of_input) {
    return OneDnn::DEFAULT(input, grad, weight, found->padding, found->stride, found->dilation, 1,
                           {of_input, !of_input, false});
  };
  std::tuple<Tensor, Tensor, Tensor> grads;
  if (mask[0]) {
    std::get<0>(grads) = std::get<0>(by_onednn(true));
  }
  if (mask[1]) {
    std::get<1>(grads) = as_product(grad, weight) ? weight_gradient(grad, input, weight, *found)
                                                  : std::get<1>(by_onednn(false));
  }
  if (mask[2]) {
    std::get<2>(grads) = grad.sum(at::IntArrayRef{0, 2, 3});
  }
  return grads;
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto* all = new torch::Library(torch::Library::IMPL, "_", KEY, __FILE__, __LINE__);
    auto* aten = new torch::Library(torch::Library::IMPL, "aten", KEY, __FILE__, __LINE__);
    all->fallback(torch::CppFunction::makeFallthrough());
    aten->impl("mm", TORCH_FN(mm));
    aten->impl("addmm", TORCH_FN(addmm));
    aten->impl("convolution", TORCH_FN(convolution));
    aten->impl("convolution_backward", TORCH_FN(convolution_backward));
  });
}

}  // namespace

bool gpipe::onednn_is_on() { return c10::impl::tls_is_dispatch_key_included(KEY); }

// Switches oneDNN's kernels on for the calling thread, for products of at least so many
// multiplications, or off (-1); `previous` gets what it was.
GP_API int gp_onednn_set(int64_t from, int64_t* previous) {
  return gpipe::guarded([&] {
    *previous = gpipe::onednn_is_on() ? least : -1;
    if (from >= 0) {
      TORCH_CHECK(at::globalContext().hasMKLDNN(), "this libtorch was made without oneDNN");
      linear_operator();
      install();
    }
    least = std::max<int64_t>(from, 0);
    c10::impl::tls_set_dispatch_key_included(KEY, from >= 0);
  });
}

// How many products, convolutions and backwards of these oneDNN has computed for this thread.
GP_API int64_t gp_onednn_computed() { return computed; }
