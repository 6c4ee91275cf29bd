#include "generators.h"

#include "capture.h"
#include "settings.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <vector>

namespace sim {

namespace {

// An explicitly made generator draws like a CPU generator with its seed, in stream order. A
// device's default one counts draws, as Philox does.
struct DeviceGenerator final : c10::GeneratorImpl {
  DeviceGenerator(int device, bool counts)
      : c10::GeneratorImpl(c10::Device(c10::kCUDA, c10::DeviceIndex(device)),
                           c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        counts(counts) {
    restart();
  }

  void restart() { source = at::detail::createCPUGenerator(own_seed); }

  // The generator of the draw with this number.
  static at::Generator of_draw(uint64_t seed, uint64_t number) {
    return at::detail::createCPUGenerator(seed * 0x9E3779B97F4A7C15ull + number);
  }

  std::function<at::Generator()> next(Stream& stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stream.capture) {
      TORCH_CHECK(counts, "Attempt to increase offset for a CUDA generator not in capture mode.");
      return [&own = *stream.capture, seed = own_seed, draw = ++stream.capture->draws] {
        return of_draw(seed, own.random_offset + draw);
      };
    }
    if (counts) {
      return [seed = own_seed, number = ++offset] { return of_draw(seed, number); };
    }
    return [source = source] { return source; };
  }

  void set_current_seed(uint64_t seed) override {
    own_seed = seed;
    offset = 0;
    restart();
  }
  void set_offset(uint64_t at) override { offset = at; }
  uint64_t get_offset() const override { return offset; }
  uint64_t current_seed() const override { return own_seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return own_seed;
  }
  void set_state(const c10::TensorImpl& state) override {
    const auto* data = static_cast<const uint64_t*>(state.data());
    own_seed = data[0];
    offset = data[1];
    restart();
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({16}, at::kByte, std::nullopt, std::nullopt, std::nullopt,
                                             std::nullopt);
    const uint64_t both[] = {own_seed, offset};
    memcpy(state.mutable_data_ptr(), both, sizeof(both));
    return state.getIntrusivePtr();
  }
  c10::GeneratorImpl* clone_impl() const override {
    auto* copy = new DeviceGenerator(device_.index(), counts);
    copy->own_seed = own_seed;
    copy->offset = offset;
    return copy;
  }
  static c10::DeviceType device_type() { return c10::kCUDA; }

  uint64_t own_seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
  bool counts;
  at::Generator source;
};

}  // namespace

const at::Generator& default_generator(int device) {
  static const auto* all = [] {
    auto* all = new std::vector<at::Generator>();
    for (int i = 0; i < settings().devices; ++i) {
      all->push_back(at::make_generator<DeviceGenerator>(i, true));
    }
    return all;
  }();
  return all->at(size_t(device));
}

at::Generator new_generator(int device) { return at::make_generator<DeviceGenerator>(device, false); }

std::function<at::Generator()> next_draw(const std::optional<at::Generator>& given, Stream& stream) {
  const auto generator = given.has_value() && given->defined() ? *given : default_generator(stream.device);
  auto* own = dynamic_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(own != nullptr, "Expected a 'cuda' device type for generator but found 'cpu'");
  return own->next(stream);
}

uint64_t advance_default_generator(int device, uint64_t draws) {
  auto generator = default_generator(device);
  auto* own = static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(own->mutex_);
  own->offset += draws;
  return own->offset - draws;
}

}  // namespace sim
