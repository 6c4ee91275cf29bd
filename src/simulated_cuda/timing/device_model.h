// Speeds of a device, from which times are computed.
#pragma once

#include <cstddef>
#include <string>

namespace sim::timing {

// Rates that well-made kernels reach, not the peaks of the data sheet.
struct DeviceModel {
  std::string name;
  // Floating-point operations per second in matrix products and convolutions, by number type; f32
  // with TF32 off.
  double f64 = 0, f32 = 0, f16 = 0;
  // Bytes per second that kernels read and write.
  double bandwidth = 0;
  // Overhead of a kernel, in seconds.
  double launch = 0;
  // Links, per direction: bytes per second, and latency in seconds.
  double peer_bandwidth = 0, peer_latency = 0;
  double host_bandwidth = 0, host_latency = 0;
  // Devices per node, in order, and the link to other nodes, which each device has one of; 0: all
  // are on one node.
  size_t node = 0;
  double node_bandwidth = 0, node_latency = 0;
  // Bytes of memory.
  size_t memory = 0;

  // Duration of a kernel with this many operations on numbers of this many bytes, which moves
  // `bytes`.
  double kernel(double flops, size_t number, double bytes) const;
  double peer_copy(double bytes) const { return peer_latency + bytes / peer_bandwidth; }
  // Whether two devices are on different nodes.
  bool apart(int one, int other) const { return node > 0 && size_t(one) / node != size_t(other) / node; }
  double copy_between(int one, int other, double bytes) const {
    return apart(one, other) ? node_latency + bytes / node_bandwidth : peer_copy(bytes);
  }
  double host_copy(double bytes) const { return host_latency + bytes / host_bandwidth; }
};

// `h100`, `a100`, or a file with a line `what=number` for each of the above, in base units. Throws
// std::invalid_argument with the error and its place.
DeviceModel device_model(const std::string& name);

}  // namespace sim::timing
