// Random numbers of devices.
#pragma once

#include "stream.h"

#include <ATen/core/Generator.h>

#include <functional>
#include <optional>

namespace sim {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// The next draw of this generator, or of the device's default one: gives the CPU generator when
// the draw is run, which a replayed graph does many times. In a capture only the default one can
// be drawn from, as in libtorch (others would have to be registered with the graph).
std::function<at::Generator()> next_draw(const std::optional<at::Generator>& given, Stream& stream);

// The offset of the device's default generator, which then moves on by so many draws.
uint64_t advance_default_generator(int device, uint64_t draws);

}  // namespace sim
