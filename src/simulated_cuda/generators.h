// Random numbers of devices.
#pragma once

#include "stream.h"

#include <ATen/core/Generator.h>

#include <functional>
#include <optional>

namespace sim {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// The next draw of this generator, or of the device's default one: returns the CPU generator when
// the draw is run, which a replayed graph does many times. A capture can draw only from the default
// one, as in libtorch (others would have to be registered with the graph).
std::function<at::Generator()> next_draw(const std::optional<at::Generator>& given, Stream& stream);

// Returns the offset of the device's default generator, and advances it by `draws`.
uint64_t advance_default_generator(int device, uint64_t draws);

}  // namespace sim
