// Time of devices: the host's monotonic clock.
#pragma once

#include "device_model.h"

#include "../stream.h"

#include <ATen/core/Tensor.h>

namespace sim::timing {

// Whether kernels compute nothing and take the model's time.
bool on();
const DeviceModel& model();

// The current time, in seconds of the monotonic clock.
double now();
// For tests: freezes the clock at this time; a thread that sleeps until later advances it.
void freeze(double at);

// Schedules an entry after `ready` on the units that it needs, and returns its end.
double end_of(const Entry& entry, int device, double ready);
// Fills host memory that is copied from a device, without taking memory for it.
void fill_with_zeros(const at::Tensor& host);
// Sleeps until this time of the monotonic clock, to within a few microseconds.
void sleep_until(double when);

}  // namespace sim::timing
