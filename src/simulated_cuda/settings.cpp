#include "settings.h"

#include "timing/device_model.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

namespace sim {

namespace {

constexpr int kMostDevices = 64;
constexpr size_t kMemory = size_t(16) << 30;

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

// A number and its unit; units are what they are worth.
double number(const std::string& text, const std::vector<std::pair<std::string, double>>& units) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(value) || value < 0) {
    refuse("`" + text + "` is no number");
  }
  const std::string unit = end;
  std::string known;
  for (const auto& [name, worth] : units) {
    if (name == unit) {
      return value * worth;
    }
    known += (known.empty() ? "`" : ", `") + name + "`";
  }
  refuse("`" + text + "`: units are " + known);
}

double seconds(const std::string& text) {
  return number(text, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"ns", 1e-9}});
}

double bytes(const std::string& text) {
  return number(text, {{"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"KiB", 1024.0}, {"B", 1}});
}

double rate(const std::string& text) {
  return number(text, {{"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}});
}

uint64_t whole(const std::string& text) {
  const double value = number(text, {{"", 1}});
  if (value != std::floor(value)) {
    refuse("`" + text + "` is no whole number");
  }
  return static_cast<uint64_t>(value);
}

bool on(const std::string& text) {
  if (text != "on" && text != "off") {
    refuse("`" + text + "` is neither `on` nor `off`");
  }
  return text == "on";
}

using Setter = std::function<void(Settings&, const std::string&)>;

// `12`, or `12@1`: of device 1.
Setter fault(const std::string& what) {
  return [what](Settings& own, const std::string& text) {
    const auto at = text.find('@');
    const uint64_t number = whole(text.substr(0, at));
    const int device = at == std::string::npos ? -1 : static_cast<int>(whole(text.substr(at + 1)));
    if (number == 0) {
      refuse("`" + text + "`: the first is number 1");
    }
    own.faults.push_back({what, device, number});
  };
}

const std::map<std::string, Setter>& setters() {
  static const auto* all = new std::map<std::string, Setter>{
      {"memory", [](Settings& own, const std::string& text) { own.memory = size_t(bytes(text)); }},
      {"delay", [](Settings& own, const std::string& text) { own.delay = seconds(text); }},
      {"seed", [](Settings& own, const std::string& text) { own.seed = whole(text); }},
      {"latency", [](Settings& own, const std::string& text) { own.latency = seconds(text); }},
      {"bandwidth", [](Settings& own, const std::string& text) { own.bandwidth = rate(text); }},
      {"peers", [](Settings& own, const std::string& text) { own.peers = on(text); }},
      {"poison", [](Settings& own, const std::string& text) { own.poison = on(text); }},
      {"checks", [](Settings& own, const std::string& text) { own.checks = on(text); }},
      {"blocking", [](Settings& own, const std::string& text) { own.blocking = on(text); }},
      {"counts", [](Settings& own, const std::string& text) { own.counts = on(text); }},
      {"fail-allocation", fault("allocation")},
      {"fail-segment", fault("segment")},
      {"fail-page-locked", fault("page-locked")},
      {"fail-copy", fault("copy")},
      {"fail-transfer", fault("transfer")},
      {"fail-kernel", fault("kernel")},
      {"stall-kernel", fault("stall")},
      {"time", [](Settings& own, const std::string& text) { own.time = text; }},
      {"trace", [](Settings& own, const std::string& text) { own.trace = text; }},
  };
  return *all;
}

struct Own {
  Settings settings;
  std::string error;

  Own() {
    const char* text = std::getenv("GPIPE_SIMULATE_GPUS");
    try {
      settings = parse(text == nullptr ? "" : text);
    } catch (const std::invalid_argument& wrong) {
      error = std::string("GPIPE_SIMULATE_GPUS: ") + wrong.what();
    }
  }
};

const Own& own() {
  static const auto* own = new Own();
  return *own;
}

}  // namespace

Settings parse(const std::string& text) {
  Settings out;
  std::istringstream words(text);
  std::string word;
  bool first = true;
  while (std::getline(words, word, ',')) {
    if (std::exchange(first, false)) {
      const uint64_t devices = whole(word);
      if (devices < 1 || devices > kMostDevices) {
        refuse("`" + word + "` devices: from 1 to " + std::to_string(kMostDevices));
      }
      out.devices = static_cast<int>(devices);
      continue;
    }
    const auto equals = word.find('=');
    const auto found = setters().find(word.substr(0, equals));
    if (equals == std::string::npos || found == setters().end()) {
      std::string known;
      for (const auto& [name, setter] : setters()) {
        known += (known.empty() ? "" : ", ") + name + "=";
      }
      refuse("unknown setting `" + word + "`: the number of devices comes first, then any of " + known);
    }
    found->second(out, word.substr(equals + 1));
  }
  if (first) {
    refuse("the number of devices is missing");
  }
  if (out.time.empty() && !out.trace.empty()) {
    refuse("trace= needs time=: it is the simulated time that it shows");
  }
  size_t memory = kMemory;
  if (!out.time.empty()) {
    memory = timing::device_model(out.time).memory;
    out.poison = out.checks = false;
    out.delay = 0;
  }
  out.memory = out.memory == 0 ? memory : out.memory;
  return out;
}

const Settings& settings() { return own().settings; }
const std::string& settings_error() { return own().error; }

}  // namespace sim
