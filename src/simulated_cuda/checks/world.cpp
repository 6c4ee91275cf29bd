#include "world.h"

#include "../address_space.h"
#include "../settings.h"

#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <sstream>
#include <stdexcept>
#include <unistd.h>

namespace sim::checks {

namespace {

// Number of history lines kept, and printed per place.
constexpr size_t kKept = 1 << 14;
constexpr int kTold = 8;

// A process that swallows the error still ends with a failure.
void end_badly(int status, void*) {
  if (status == 0 && World::get().found) {
    fflush(nullptr);
    _exit(1);
  }
}

}  // namespace

World& World::get() {
  static auto* world = new World();
  return *world;
}

bool World::on() {
  static const bool asked = settings().checks && settings().time.empty();
  return asked && !get().found;
}

Clock& World::clock(const Stream& stream) {
  if (clocks.size() <= stream.number) {
    clocks.resize(stream.number + 1);
    streams.resize(stream.number + 1);
  }
  streams[stream.number] = &stream;
  auto& own = clocks[stream.number];
  if (own.size() <= stream.number) {
    own.resize(stream.number + 1);
  }
  return own;
}

bool World::is_before(const Use& use, const Stream& stream) {
  return use.stream == stream.number || of(clock(stream), use.stream) >= use.at || of(host, use.stream) >= use.at;
}

Allocation* World::holding(const char* from, const char* to) {
  auto after = allocations.upper_bound(from);
  if (after == allocations.begin()) {
    return nullptr;
  }
  auto& own = (--after)->second;
  return to <= own.to ? &own : nullptr;
}

void World::note(const char* from, const char* to, const char* what, const Stream* stream) {
  const Event event{++serial, from, to, what, stream, thread_name()};
  if (history.size() < kKept) {
    history.push_back(event);
  } else {
    history[serial % kKept] = event;
  }
}

UnderWay* World::capturing(const Capture* capture) {
  for (auto& own : captures) {
    if (own.capture == capture) {
      return &own;
    }
  }
  return nullptr;
}

std::string World::report(const std::string& sentence, const char* from, const char* to) {
  const std::string told = "simulated GPU check: " + sentence;
  if (found.exchange(true)) {
    return told;
  }
  on_exit(end_badly, nullptr);
  std::map<uint64_t, const Event*> lines;
  for (const auto& event : history) {
    if (event.from < to && from < event.to) {
      lines[event.serial] = &event;
    }
  }
  while (lines.size() > kTold) {
    lines.erase(lines.begin());
  }
  std::ostringstream text;
  text << told << "\n";
  for (const auto& [serial, event] : lines) {
    text << "  " << serial << ": " << name_of(event->from, event->to) << " " << event->what << " "
         << (event->stream != nullptr ? name_of(event->stream) : std::string()) << " (thread " << event->thread
         << ")\n";
  }
  fputs(text.str().c_str(), stderr);
  return told;
}

void World::fail(const std::string& sentence, const char* from, const char* to) {
  throw std::runtime_error(report(sentence, from, to));
}

const char* thread_name() {
  static thread_local const char* name = [] {
    char text[32] = "";
    pthread_getname_np(pthread_self(), text, sizeof(text));
    return interned(text);
  }();
  return name;
}

std::string name_of(const Stream* stream) {
  return "stream " + std::to_string(stream->id) + " of cuda:" + std::to_string(stream->device);
}

std::string name_of(const char* from, const char* to) {
  std::ostringstream text;
  const int device = device_of(from);
  text << to - from << " bytes at " << static_cast<const void*>(from);
  if (device >= 0) {
    text << " of cuda:" << device;
  } else {
    text << " of the host";
  }
  return text.str();
}

void forget() { World::get().found = false; }

}  // namespace sim::checks
