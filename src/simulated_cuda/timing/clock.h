// The time of devices: that of the host's monotonic clock.
#pragma once

#include "device_model.h"

#include "../stream.h"

#include <ATen/core/Tensor.h>

namespace sim::timing {

// Whether kernels compute nothing and take as long as the model says.
bool on();
const DeviceModel& model();

// The moment, in seconds of the monotonic clock.
double now();
// For tests: the clock stands at this moment from now on, and whoever sleeps until a later one
// moves it there.
void freeze(double at);

// Places an entry behind `ready` on the units that it needs, and says when it is over.
double end_of(const Entry& entry, int device, double ready);
// What is copied from a device to the host: nothing of it takes memory of its own.
void fill_with_zeros(const at::Tensor& host);
// Returns at this moment of the monotonic clock, within a few microseconds.
void sleep_until(double when);

}  // namespace sim::timing
