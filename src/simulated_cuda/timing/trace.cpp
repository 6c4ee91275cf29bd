#include "trace.h"

#include "../settings.h"

#include <cstdio>
#include <cstdlib>

namespace sim::timing {

namespace {

struct Ran {
  const char* what;
  Unit unit;
  int device, peer;
  double begin, seconds;
};

struct Trace {
  std::mutex mutex;
  std::vector<Ran> all;

  static Trace& get() {
    static auto* trace = new Trace();
    return *trace;
  }

  static void write();
};

std::string unit_of(const Ran& ran) {
  switch (ran.unit) {
    case Unit::copy_in:
      return "from the host";
    case Unit::copy_out:
      return "to the host";
    case Unit::copy_peer:
      return "to cuda:" + std::to_string(ran.peer);
    case Unit::kernel:
    case Unit::nothing:
      break;
  }
  return "kernels";
}

// Writes Chrome trace events, which Perfetto shows: a process is a device, a thread one of its
// units. Operator names contain no character that JSON would have to escape.
void Trace::write() {
  auto& own = get();
  std::lock_guard<std::mutex> lock(own.mutex);
  const auto& path = settings().trace;
  FILE* file = fopen(path.c_str(), "w");
  if (file == nullptr) {
    fprintf(stderr, "simulated GPUs: trace=%s cannot be written\n", path.c_str());
    return;
  }
  double first = own.all.empty() ? 0 : own.all.front().begin;
  for (const auto& ran : own.all) {
    first = std::min(first, ran.begin);
  }
  fprintf(file, "{\"traceEvents\": [");
  const char* separator = "\n";
  for (const auto& ran : own.all) {
    fprintf(file, "%s{\"name\": \"%s\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, \"pid\": \"cuda:%d\", \"tid\": \"%s\"}",
            separator, ran.what, (ran.begin - first) * 1e6, ran.seconds * 1e6, ran.device, unit_of(ran).c_str());
    separator = ",\n";
  }
  fprintf(file, "\n]}\n");
  fclose(file);
}

}  // namespace

void trace(const Entry& entry, int device, double begin, double seconds) {
  if (settings().trace.empty() || entry.unit == Unit::nothing) {
    return;
  }
  static const int registered = std::atexit(&Trace::write);
  (void)registered;
  auto& own = Trace::get();
  std::lock_guard<std::mutex> lock(own.mutex);
  own.all.push_back({entry.what, entry.unit, device, entry.peer, begin, seconds});
}

}  // namespace sim::timing
