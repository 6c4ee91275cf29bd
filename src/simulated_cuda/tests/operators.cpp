// Operators with several kernels in libtorch: the device uses the CPU's, bit by bit.
#include "graph.h"
#include "test.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cmath>

using namespace test;

// libtorch's reaction to a wait of the host: nothing (0), warn (1), an error (2).
extern "C" int sim_warning_state __asm__("_ZZN3c104cuda13warning_stateEvE14warning_state_");

namespace {

using Tensors = std::vector<at::Tensor>;

// Checks that `compute` gives the same bits on the CPU and on a device.
void same_bits(const char* what, const std::function<Tensors(const Tensors&)>& compute, const Tensors& given) {
  at::set_num_threads(1);
  Tensors there;
  for (const auto& tensor : given) {
    there.push_back(tensor.to(cuda(0)));
  }
  const auto expected = compute(given), found = compute(there);
  for (size_t i = 0; i < expected.size(); ++i) {
    that(found[i].is_cuda(), std::string(what) + ": the result is not on the device");
    that(at::equal(found[i].cpu(), expected[i]), std::string(what) + ": other bits in result " + std::to_string(i));
  }
}

// Returns a cell's outputs, and the gradients of all its inputs.
Tensors with_gradients(const std::function<Tensors(const Tensors&)>& cell, const Tensors& given) {
  Tensors leaves;
  for (const auto& tensor : given) {
    leaves.push_back(tensor.detach().clone().requires_grad_());
  }
  auto results = cell(leaves);
  auto sum = results[0].sum() * 0;
  for (size_t i = 0; i < results.size(); ++i) {
    sum = sum + (results[i] * results[i] * double(i + 1)).sum();
  }
  sum.backward();
  for (const auto& leaf : leaves) {
    results.push_back(leaf.grad());
  }
  return results;
}

// Makes weights and input of a cell with this many gates.
Tensors of_cell(int64_t gates) {
  const int64_t width = 24;
  return {at::randn({7, 10}),          at::randn({7, width}),         at::randn({gates * width, 10}),
          at::randn({gates * width, width}), at::randn({gates * width}), at::randn({gates * width}),
          at::randn({7, width})};
}

// Makes input, states and weights of two layers.
Tensors of_layers(int64_t gates, int64_t directions) {
  Tensors all{at::randn({4, 6, 5}), at::randn({2 * directions, 4, 8}), at::randn({2 * directions, 4, 8})};
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t direction = 0; direction < directions; ++direction) {
      for (const int64_t width : {layer == 0 ? 5 : 8 * directions, int64_t(8)}) {
        all.push_back(at::randn({gates * 8, width}) * 0.3);
      }
      all.push_back(at::randn({gates * 8}));
      all.push_back(at::randn({gates * 8}));
    }
  }
  return all;
}

}  // namespace

TEST(where_the_cpu_has_a_kernel_nothing_is_put_together) {
  using c10::DispatchKey;
  auto& dispatcher = c10::Dispatcher::singleton();
  int found = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !op->hasKernelForDispatchKey(DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      continue;
    }
    if (op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
      ++found;
      that(op->hasKernelForDispatchKey(DispatchKey::CUDA), c10::toString(name));
    }
  }
  that(found >= 8, "libtorch has fewer of them: " + std::to_string(found));
}

TEST(kernels_with_a_composite_beside_them_are_the_cpus) {
  const auto x = at::randn({6, 8, 12}), y = at::randn({6, 8, 12});
  same_bits("mish", [](const Tensors& t) { return Tensors{at::mish_backward(t[0], t[1])}; }, {x, y});
  same_bits("addr", [](const Tensors& t) { return Tensors{at::addr(t[0], t[1], t[2], 0.3, 0.7)}; },
            {at::randn({40, 50}), at::randn({40}), at::randn({50})});
  same_bits("layer norm", [](const Tensors& t) { return Tensors{at::layer_norm(t[0], {12}, t[1], t[2])}; },
            {x, at::randn({12}), at::randn({12})});
  same_bits("group norm", [](const Tensors& t) { return Tensors{at::group_norm(t[0], 4, t[1], t[2])}; },
            {x, at::randn({8}), at::randn({8})});
  same_bits("stack", [](const Tensors& t) { return Tensors{at::stack({t[0], t[1]}, 1)}; }, {x, y});
  same_bits("shuffle", [](const Tensors& t) { return Tensors{at::channel_shuffle(t[0].unsqueeze(3), 2)}; }, {x});
  same_bits("any", [](const Tensors& t) { return Tensors{at::any(t[0] > 2, at::IntArrayRef({0, 2}))}; }, {x});
  same_bits("power sum", [](const Tensors& t) { return Tensors{at::linalg_vector_norm(t[0], 3)}; }, {x});
}

TEST(cells_of_recurrent_layers_are_the_cpus) {
  same_bits("lstm", [](const Tensors& given) {
    return with_gradients([](const Tensors& t) {
      const auto [h, c] = at::lstm_cell(t[0], {t[1], t[6]}, t[2], t[3], t[4], t[5]);
      return Tensors{h, c};
    }, given);
  }, of_cell(4));
  same_bits("gru", [](const Tensors& given) {
    return with_gradients([](const Tensors& t) {
      return Tensors{at::gru_cell(t[0], t[1], t[2], t[3], t[4], t[5]) * (1 + t[6] * 0)};
    }, given);
  }, of_cell(3));
}

TEST(attention_is_the_cpus) {
  const auto causal = [](const Tensors& given) {
    return with_gradients([](const Tensors& t) {
      return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0.0, true)};
    }, given);
  };
  const auto masked = [](const Tensors& given) {
    const auto mask = at::ones({5, 5}, given[0].options().dtype(at::kBool)).tril();
    return with_gradients([&](const Tensors& t) {
      return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], mask)};
    }, given);
  };
  const Tensors given{at::randn({3, 2, 5, 6}), at::randn({3, 2, 5, 6}), at::randn({3, 2, 5, 6})};
  same_bits("causal", causal, given);
  same_bits("masked", masked, given);
}

TEST(recurrent_layers_are_the_cpus) {
  const at::NoGradGuard inference;
  same_bits("lstm in inference", [](const Tensors& t) {
    const auto [out, h, c] = at::lstm(t[0], {t[1], t[2]}, at::TensorList(t).slice(3), true, 2, 0, false, false, true);
    return Tensors{out, h, c};
  }, of_layers(4, 1));
  const at::AutoGradMode training(true);
  for (const bool both_ways : {false, true}) {
    same_bits("lstm", [&](const Tensors& given) {
      return with_gradients([&](const Tensors& t) {
        const auto weights = at::TensorList(t).slice(3);
        const auto [out, h, c] = at::lstm(t[0], {t[1], t[2]}, weights, true, 2, 0, true, both_ways, true);
        return Tensors{out, h, c};
      }, given);
    }, of_layers(4, both_ways ? 2 : 1));
    same_bits("gru", [&](const Tensors& given) {
      return with_gradients([&](const Tensors& t) {
        const auto weights = at::TensorList(t).slice(3);
        const auto [out, h] = at::gru(t[0], t[1] + t[2] * 0, weights, true, 2, 0, true, both_ways, true);
        return Tensors{out, h};
      }, given);
    }, of_layers(3, both_ways ? 2 : 1));
  }
}

TEST(cells_without_biases_are_the_cpus) {
  same_bits("gru", [](const Tensors& given) {
    return with_gradients([](const Tensors& t) { return Tensors{at::gru_cell(t[0], t[1], t[2], t[3]) + t[4] * 0}; },
                          given);
  }, [] { auto all = of_cell(3); all.erase(all.begin() + 4, all.begin() + 6); return all; }());
  same_bits("lstm", [](const Tensors& given) {
    return with_gradients([](const Tensors& t) {
      const auto [h, c] = at::lstm_cell(t[0], {t[1], t[4]}, t[2], t[3]);
      return Tensors{h, c};
    }, given);
  }, [] { auto all = of_cell(4); all.erase(all.begin() + 4, all.begin() + 6); return all; }());
}

// libtorch copies it to the device from memory that is not page-locked.
TEST(an_index_of_the_host_has_the_host_wait) {
  auto x = at::arange(12, on(0)).view({4, 3});
  const auto host = at::tensor({2, 0}, at::kLong), there = host.to(cuda(0));
  const auto zeros = at::zeros({2, 3}, on(0));
  const auto number = at::scalar_tensor(7, at::kFloat);
  sim_warning_state = 2;
  const std::string why = "synchronizing CUDA operation";
  refused([&] { at::index(x, {host}); }, why);
  refused([&] { x.index_put_({host}, zeros); }, why);
  refused([&] { at::index_put(x, {there}, number); }, why);
  refused([&] { at::_unsafe_index_put(x, {host}, zeros); }, why);
  x.index_put_({there}, at::index(x, {there}) * 2);
  sim_warning_state = 0;
  x.index_put_({host}, at::index(x, {host}) * 2);
  x.index_put_({at::scalar_tensor(1, at::kLong)}, number);
  const auto expected = at::tensor({0, 4, 8, 7, 7, 7, 24, 28, 32, 9, 10, 11}, at::kFloat).view({4, 3});
  that(at::equal(x.cpu(), expected), "other numbers than the CPU's");
}

TEST(a_capture_takes_no_index_of_the_host) {
  const auto x = at::ones({4}, on(0));
  const auto y = at::zeros({2}, on(0));
  const auto host = at::tensor({2, 0}, at::kLong);
  at::cuda::CUDAGraph graph(false);
  Within in(new_stream());
  guard().synchronizeDevice(0);
  graph.capture_begin(at::cuda::graph_pool_handle(), kThreadLocal);
  refused([&] { x.index_put_({host}, y); }, "operation not permitted when stream is capturing");
}

// CUDA's result is correctly rounded; that of the CPU's operator is not.
TEST(the_root_of_a_double_is_rounded_correctly) {
  const auto x = at::arange(4000, at::kDouble) * 0.37;
  const auto there = x.to(cuda(0));
  auto in_place = there.clone(), into = at::empty_like(there);
  in_place.sqrt_();
  at::sqrt_out(into, there);
  for (const auto& roots : {there.sqrt(), in_place, into}) {
    const auto here = roots.cpu();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double expected = std::sqrt(x.const_data_ptr<double>()[i]);
      that(here.const_data_ptr<double>()[i] == expected, "the root of number " + std::to_string(i));
    }
  }
}
