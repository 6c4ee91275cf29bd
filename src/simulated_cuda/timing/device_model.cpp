#include "device_model.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>

namespace sim::timing {

namespace {

// Share of a data sheet's dense peak that large matrix products reach, and of its memory bandwidth
// that kernels which only move bytes reach.
constexpr double kReachedFlops = 0.7;
constexpr double kReachedBandwidth = 0.9;
// From the start of an empty kernel to the start of the next one in its stream.
constexpr double kLaunch = 2e-6;
constexpr double kPeerLatency = 5e-6;
constexpr double kHostLatency = 8e-6;

// SXM, 80 GB of HBM3, NVLink 4 with 450 GB/s in each direction, PCIe 5.
DeviceModel h100() {
  DeviceModel own;
  own.name = "H100";
  own.f64 = kReachedFlops * 67e12;
  own.f32 = kReachedFlops * 67e12;
  own.f16 = kReachedFlops * 989e12;
  own.bandwidth = kReachedBandwidth * 3.35e12;
  own.launch = kLaunch;
  own.peer_bandwidth = 450e9;
  own.peer_latency = kPeerLatency;
  own.host_bandwidth = 55e9;
  own.host_latency = kHostLatency;
  own.memory = size_t(80) << 30;
  return own;
}

// SXM, 80 GB of HBM2e, NVLink 3 with 300 GB/s in each direction, PCIe 4.
DeviceModel a100() {
  DeviceModel own = h100();
  own.name = "A100";
  own.f64 = own.f32 = kReachedFlops * 19.5e12;
  own.f16 = kReachedFlops * 312e12;
  own.bandwidth = kReachedBandwidth * 2.04e12;
  own.peer_bandwidth = 300e9;
  own.host_bandwidth = 25e9;
  return own;
}

using Field = double DeviceModel::*;

const std::map<std::string, Field>& fields() {
  static const auto* all = new std::map<std::string, Field>{
      {"f64", &DeviceModel::f64},
      {"f32", &DeviceModel::f32},
      {"f16", &DeviceModel::f16},
      {"bandwidth", &DeviceModel::bandwidth},
      {"launch", &DeviceModel::launch},
      {"peer_bandwidth", &DeviceModel::peer_bandwidth},
      {"peer_latency", &DeviceModel::peer_latency},
      {"host_bandwidth", &DeviceModel::host_bandwidth},
      {"host_latency", &DeviceModel::host_latency},
      {"node_bandwidth", &DeviceModel::node_bandwidth},
      {"node_latency", &DeviceModel::node_latency},
  };
  return *all;
}

double number(const std::string& text, const std::string& where) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !std::isfinite(value) || value < 0) {
    throw std::invalid_argument(where + ": `" + text + "` is no number");
  }
  return value;
}

// Values missing from a file are the H100's.
DeviceModel from_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw std::invalid_argument("time=" + path + ": neither `h100` nor `a100`, and no file: " + strerror(errno));
  }
  DeviceModel own = h100();
  own.name = path.substr(path.rfind('/') + 1);
  std::string line;
  for (int at = 1; std::getline(file, line); ++at) {
    const auto where = path + ":" + std::to_string(at);
    if (line.empty() || line[0] == '#') {
      continue;
    }
    const auto equals = line.find('=');
    const auto what = line.substr(0, equals);
    const auto value = equals == std::string::npos ? 0 : number(line.substr(equals + 1), where);
    if (what == "memory") {
      own.memory = static_cast<size_t>(value);
    } else if (what == "node") {
      own.node = static_cast<size_t>(value);
    } else if (auto field = fields().find(what); field != fields().end()) {
      own.*(field->second) = value;
    } else {
      std::string known = "memory, node";
      for (const auto& [name, at] : fields()) {
        known += ", " + name;
      }
      throw std::invalid_argument(where + ": `" + what + "` is none of " + known);
    }
  }
  for (const auto rate : {own.f64, own.f32, own.f16, own.bandwidth, own.peer_bandwidth, own.host_bandwidth}) {
    if (rate == 0) {
      throw std::invalid_argument(path + ": a rate is 0");
    }
  }
  if ((own.node > 0) != (own.node_bandwidth > 0)) {
    throw std::invalid_argument(path + ": `node` and `node_bandwidth` come together");
  }
  return own;
}

}  // namespace

double DeviceModel::kernel(double flops, size_t number, double bytes) const {
  const double rate = number >= 8 ? f64 : number >= 4 ? f32 : f16;
  return launch + std::max(flops / rate, bytes / bandwidth);
}

DeviceModel device_model(const std::string& name) {
  if (name == "h100") {
    return h100();
  }
  return name == "a100" ? a100() : from_file(name);
}

}  // namespace sim::timing
