// The functions of NVIDIA's driver that the project calls, by name.
#include "settings.h"

#include <cstdio>

#define DRIVER extern "C" __attribute__((visibility("default"))) int

namespace {

constexpr int kInvalidDevice = 101;
constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR

bool exists(int device) { return device >= 0 && device < sim::settings().devices; }

}  // namespace

DRIVER cuInit(unsigned) { return 0; }

DRIVER cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

DRIVER cuDeviceGetCount(int* count) {
  *count = sim::settings().devices;
  return 0;
}

DRIVER cuDeviceGet(int* handle, int index) {
  *handle = index;
  return exists(index) ? 0 : kInvalidDevice;
}

DRIVER cuDeviceGetName(char* name, int room, int device) {
  const auto& time = sim::settings().time;
  snprintf(name, static_cast<size_t>(room), "simulated GPU %d%s%s", device, time.empty() ? "" : ", time of ",
           time.c_str());
  return 0;
}

DRIVER cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = sim::settings().memory;
  return 0;
}

// Processes share the host's GPUs: equal numbers are the same GPU.
DRIVER cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  for (int byte = 0; byte < 16; ++byte) {
    uuid[byte] = byte == 0 ? static_cast<unsigned char>(device + 1) : 0;
  }
  return 0;
}

DRIVER cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kMajor ? 9 : 0;
  return 0;
}

DRIVER cuDeviceCanAccessPeer(int* can, int from, int to) {
  *can = from != to && sim::settings().peers ? 1 : 0;
  return 0;
}

DRIVER cuGetErrorString(int status, const char** text) {
  *text = status == kInvalidDevice ? "invalid device ordinal" : "no error";
  return 0;
}

// Whether kernels compute nothing and only simulated time passes.
extern "C" __attribute__((visibility("default"))) int sim_keeps_time() { return sim::settings().time.empty() ? 0 : 1; }

// Error in the settings; empty if there is none.
extern "C" __attribute__((visibility("default"))) const char* sim_settings_error() {
  return sim::settings_error().c_str();
}
