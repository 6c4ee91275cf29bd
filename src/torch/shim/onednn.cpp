// oneDNN's kernels for products and convolutions on the CPU, instead of libtorch's choice.
//
// libtorch computes products with MKL, which has only AVX2 kernels for other makers' processors,
// and with one intra-op thread it leaves convolutions with kernels of 1 x 1 to MKL too. oneDNN's
// kernels adapt to the processor's capabilities. libtorch offers them through its own functions
// (`mkldnn_matmul`, `mkldnn_convolution`), but autograd's formulas choose again in each backward.
//
// So an otherwise unused dispatch key is switched on for a thread, below autograd: every operator
// falls through it except products of two matrices and convolutions, forward and backward.
// Unsuitable calls (other number types, groups, one row) go to libtorch, as without the key. The
// results depend on shapes and layouts only: neither on addresses nor on what a thread has computed
// before.
#include "onednn.h"
#include "shim.h"

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/DispatchStub.h>
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
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

namespace at::native {

// As in ATen/native/mkldnn/Matmul.h, which is not among the installed headers: result = beta *
// result + alpha * left * right.
TORCH_API void mkldnn_matmul(const Tensor& left, const Tensor& right, const Tensor& result, float beta, float alpha);

// As in ATen/native/ConvUtils.h, which would include the hooks of CUDA's library: classes with
// virtual functions that are not needed here.
using mkldnn_convolution_backward_fn = std::tuple<Tensor, Tensor, Tensor> (*)(
    const Tensor&, const Tensor&, const Tensor&, IntArrayRef, IntArrayRef, IntArrayRef, int64_t, std::array<bool, 3>);
DECLARE_DISPATCH(mkldnn_convolution_backward_fn, mkldnn_convolution_backward_stub)

}  // namespace at::native

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

bool is_on() { return c10::impl::tls_is_dispatch_key_included(KEY); }

bool plain(const Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && tensor.device().is_cpu() &&
         tensor.scalar_type() == at::kFloat && !tensor.is_neg() && !tensor.is_nested();
}

// Hides calls made by oneDNN's own operators from this key and from autograd. With gradients
// enabled they would choose training kernels, whose bits may differ from those of inference.
struct Plainly {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  c10::impl::ExcludeDispatchKeyGuard not_again{KEY};
  at::NoGradGuard no_graph;
};

// libtorch has oneDNN's products only for processors with AVX-512, or with what came after it.
bool has_products() {
  static const bool has = [] {
    const auto one = at::empty({2, 2}, at::kFloat).zero_();
    try {
      at::native::mkldnn_matmul(one, one, at::empty({2, 2}, at::kFloat), 0, 1);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }();
  return has;
}

// [m, k] and [k, n]: [m, n].
Tensor times(const Tensor& left, const Tensor& right) {
  auto out = at::empty({left.size(0), right.size(1)}, left.options());
  at::native::mkldnn_matmul(left, right, out, /*beta=*/0, /*alpha=*/1);
  return out;
}

void add_times(const Tensor& sum, const Tensor& left, const Tensor& right) {
  at::native::mkldnn_matmul(left, right, sum, /*beta=*/1, /*alpha=*/1);
}

// With few rows and a transposed larger factor, that factor is first reordered, which takes longer
// than the product. As the first factor of the transposed product it needs no reordering, and the
// columns of that product fill whole registers here.
bool better_swapped(int64_t rows, int64_t inner, int64_t columns, const Tensor& right) {
  return rows < 64 && rows % 16 == 0 && inner * columns >= (1 << 18) && right.stride(0) == 1;
}

bool multiplies(const Tensor& left, const Tensor& right) {
  if (!plain(left) || !plain(right) || left.dim() != 2 || right.dim() != 2 || left.size(1) != right.size(0)) {
    return false;
  }
  const auto rows = left.size(0), inner = left.size(1), columns = right.size(1);
  return std::min({rows, inner, columns}) >= 2 && rows * inner * columns >= least && has_products();
}

std::optional<Tensor> product(const Tensor& left, const Tensor& right, const OptionalTensor& bias) {
  if (!multiplies(left, right)) {
    return std::nullopt;
  }
  Plainly plainly;
  ++computed;
  const auto rows = left.size(0), inner = left.size(1), columns = right.size(1);
  if (better_swapped(rows, inner, columns, right)) {
    auto out = times(right.t(), left.t()).t().contiguous();
    return bias ? out.add_(*bias) : out;
  }
  if (!bias) {
    return times(left, right);
  }
  auto out = bias->expand({rows, columns}).contiguous();
  add_times(out, left, right);
  return out;
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

// Non-tensor parameters of an image convolution.
struct Window {
  std::array<int64_t, 2> stride, padding, dilation;
};

// Values for both dimensions of an image: a single number applies to both.
std::optional<std::array<int64_t, 2>> pair(c10::SymIntArrayRef list) {
  const auto numbers = c10::asIntArrayRefSlowOpt(list);
  if (!numbers || numbers->empty() || numbers->size() > 2) {
    return std::nullopt;
  }
  return std::array<int64_t, 2>{numbers->front(), numbers->back()};
}

// The window of a convolution that oneDNN can compute: of single-precision images, without groups.
// Invalid ones are left to libtorch, which reports the error.
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

// A convolution as one product: its weight with what each of its elements meets.
struct Columns {
  Columns(const Tensor& images, at::IntArrayRef weight, const Window& window)
      : window(window),
        batch(images.size(0)),
        channels(images.size(1)),
        size{images.size(2), images.size(3)},
        kernel{weight[2], weight[3]} {
    for (int64_t i = 0; i < 2; ++i) {
      bordered[i] = size[i] + 2 * window.padding[i];
      output[i] = (bordered[i] - window.dilation[i] * (kernel[i] - 1) - 1) / window.stride[i] + 1;
    }
  }

  int64_t places() const { return batch * output[0] * output[1]; }

  // Each element of the images is met by one weight of each kernel.
  bool one_to_one() const {
    return kernel[0] * kernel[1] == 1 && window.padding[0] == 0 && window.padding[1] == 0 &&
           window.stride[0] == 1 && window.stride[1] == 1;
  }

  // [b, c, h, w]: [c · kernel, b · output] ("im2col").
  Tensor of(const Tensor& images) const {
    if (one_to_one()) {
      return images.transpose(0, 1).reshape({channels, places()});
    }
    const auto input = with_border(images);
    auto out = at::empty({channels * kernel[0] * kernel[1], places()}, images.options());
    rows<false>(out.mutable_data_ptr<float>(), const_cast<float*>(input.const_data_ptr<float>()));
    return out;
  }

  // The other way, with the sum of all that one element of the images is in.
  Tensor to_images(const Tensor& columns) const {
    if (one_to_one()) {
      return columns.view({channels, batch, size[0], size[1]}).transpose(0, 1).contiguous();
    }
    const auto out = at::zeros({batch, channels, bordered[0], bordered[1]}, columns.options());
    rows<true>(const_cast<float*>(columns.const_data_ptr<float>()), out.mutable_data_ptr<float>());
    return inside(out).contiguous();
  }

  // [channels, b · output]: [b, channels, output].
  Tensor to_output(const Tensor& products) const {
    return products.view({products.size(0), batch, output[0], output[1]}).transpose(0, 1).contiguous();
  }

  const Window window;
  const int64_t batch, channels;
  const std::array<int64_t, 2> size, kernel;
  std::array<int64_t, 2> bordered{}, output{};

 private:
  Tensor inside(const Tensor& images) const {
    return images.narrow(2, window.padding[0], size[0]).narrow(3, window.padding[1], size[1]);
  }

  Tensor with_border(const Tensor& images) const {
    if (window.padding[0] == 0 && window.padding[1] == 0) {
      return images.contiguous();
    }
    auto out = at::zeros({batch, channels, bordered[0], bordered[1]}, images.options());
    inside(out).copy_(images);
    return out;
  }

  // Small images have rows whose length the compiler knows.
  template <bool kBack>
  void rows(float* columns, float* images) const {
    if (window.stride[1] != 1) {
      return rows<kBack, 0>(columns, images);
    }
    switch (output[1]) {
      case 2: return rows<kBack, 2>(columns, images);
      case 4: return rows<kBack, 4>(columns, images);
      case 8: return rows<kBack, 8>(columns, images);
      case 16: return rows<kBack, 16>(columns, images);
      default: return rows<kBack, 0>(columns, images);
    }
  }

  template <bool kBack, int64_t kWidth>
  void rows(float* columns, float* images) const {
    const int64_t width = kWidth > 0 ? kWidth : output[1], stride = kWidth > 0 ? 1 : window.stride[1];
    const int64_t row = bordered[1], plane = bordered[0] * row, image = channels * plane;
    at::parallel_for(0, channels, 1, [&](int64_t begin, int64_t end) {
      auto* __restrict column = columns + begin * kernel[0] * kernel[1] * places();
      for (int64_t c = begin; c < end; ++c) {
        for (int64_t y = 0; y < kernel[0]; ++y) {
          for (int64_t x = 0; x < kernel[1]; ++x) {
            auto* corner = images + c * plane + y * window.dilation[0] * row + x * window.dilation[1];
            for (int64_t b = 0; b < batch; ++b) {
              for (int64_t i = 0; i < output[0]; ++i, column += width) {
                auto* __restrict there = corner + b * image + i * window.stride[0] * row;
                for (int64_t j = 0; j < width; ++j) {
                  if constexpr (kBack) {
                    there[j * stride] += column[j];
                  } else {
                    column[j] = there[j * stride];
                  }
                }
              }
            }
          }
        }
      }
    });
  }
};

bool rows_first(const Tensor& tensor) { return tensor.suggest_memory_format() == at::MemoryFormat::Contiguous; }

// Whether one product over all places of all images is faster. oneDNN's own convolution kernels
// reorder images and weight into blocks, and the results back to rows, which takes longer than the
// product if the weight is larger than its operand.
bool as_product(const Tensor& images, const Tensor& weight, const Columns& columns) {
  return has_products() && rows_first(images) && rows_first(weight) &&
         (columns.kernel[0] * columns.kernel[1] == 1 || columns.places() <= weight.size(0));
}

Tensor flat(const Tensor& weight) { return weight.contiguous().view({weight.size(0), -1}); }

// [b, channels, h, w]: [channels, b · h · w].
Tensor by_channels(const Tensor& images) {
  return images.transpose(0, 1).reshape({images.size(1), -1});
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
  const Columns columns(input, weight.sizes(), *found);
  if (as_product(input, weight, columns)) {
    auto out = columns.to_output(times(flat(weight), columns.of(input)));
    return has_bias ? out.add_(bias->view({1, -1, 1, 1})) : out;
  }
  return at::mkldnn_convolution(input, weight, has_bias ? OptionalTensor(bias->contiguous()) : std::nullopt,
                                found->padding, found->stride, found->dilation, 1);
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
  // Separately: a split backward asks for only one of them.
  auto by_onednn = [&](bool of_input) {
    return OneDnn::DEFAULT(input, grad, weight, found->padding, found->stride, found->dilation, 1,
                           {of_input, !of_input, false});
  };
  const Columns columns(input, weight.sizes(), *found);
  const bool product = as_product(input, weight, columns) && rows_first(grad);
  std::tuple<Tensor, Tensor, Tensor> grads;
  if (mask[0]) {
    std::get<0>(grads) = product ? columns.to_images(times(flat(weight).t(), by_channels(grad)))
                                 : std::get<0>(by_onednn(true));
  }
  if (mask[1]) {
    std::get<1>(grads) = product ? times(by_channels(grad), columns.of(input).t()).view(weight.sizes())
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

namespace gpipe {

bool onednn_multiplies(const Tensor& left, const Tensor& right) { return is_on() && multiplies(left, right); }

Tensor onednn_product(const Tensor& left, const Tensor& right) {
  Plainly plainly;
  return times(left, right);
}

void onednn_add_product(const Tensor& sum, const Tensor& left, const Tensor& right) {
  Plainly plainly;
  ++computed;
  add_times(sum, left, right);
  sum.unsafeGetTensorImpl()->bump_version();
}

std::optional<std::pair<Tensor, Tensor>> onednn_weight_factors(
    const Tensor& grad, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, const c10::SymInt& groups) {
  const auto found = is_on() ? window(input, weight, stride, padding, dilation, transposed, groups) : std::nullopt;
  if (!found || !plain(grad) || grad.dim() != 4) {
    return std::nullopt;
  }
  const Columns columns(input, weight.sizes(), *found);
  if (!as_product(input, weight, columns) || !rows_first(grad)) {
    return std::nullopt;
  }
  Plainly plainly;
  return std::pair(by_channels(grad), columns.of(input).t());
}

}  // namespace gpipe

// Switches oneDNN's kernels on for the calling thread, for products of at least `from`
// multiplications, or off (-1); `previous` receives the old setting.
GP_API int gp_onednn_set(int64_t from, int64_t* previous) {
  return gpipe::guarded([&] {
    *previous = is_on() ? least : -1;
    if (from >= 0) {
      TORCH_CHECK(AT_MKLDNN_ENABLED(), "this libtorch was made without oneDNN");
      install();
    }
    least = std::max<int64_t>(from, 0);
    c10::impl::tls_set_dispatch_key_included(KEY, from >= 0);
  });
}

// Number of products, convolutions and their backwards that oneDNN has computed for this thread.
GP_API int64_t gp_onednn_computed() { return computed; }

// Whether oneDNN's products support this processor.
GP_API int gp_onednn_has_products() { return has_products() ? 1 : 0; }
