#include "settings.h"

#include "timing/device_model.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

bool is_digit(char letter) { return std::isdigit(static_cast<unsigned char>(letter)) != 0; }

// A decimal number with its unit; units map to their factors. Hexadecimal digits and exponents,
// which strtod also reads, are refused.
double number(const std::string& text, const std::vector<std::pair<std::string, double>>& units) {
  const auto digits = std::find_if(text.begin(), text.end(), [](char letter) { return letter != '.' && !is_digit(letter); });
  const std::string decimal(text.begin(), digits);
  char* end = nullptr;
  const double value = std::strtod(decimal.c_str(), &end);
  if (end == decimal.c_str() || *end != 0 || !std::isfinite(value)) {
    refuse("`" + text + "` is no number");
  }
  const std::string unit(digits, text.end());
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

// Zero would mean the default.
double more_than_none(double value, const std::string& text) {
  if (value < 1) {
    refuse("`" + text + "`: more than that");
  }
  return value;
}

bool is_whole(const std::string& text) {
  constexpr size_t kDigits = 18;  // always in 64 bits
  return !text.empty() && text.size() <= kDigits && std::all_of(text.begin(), text.end(), is_digit);
}

uint64_t whole(const std::string& text) {
  if (!is_whole(text)) {
    refuse("`" + text + "` is no whole number");
  }
  return std::stoull(text);
}

int device_count(const std::string& text) {
  const uint64_t devices = is_whole(text) ? whole(text) : 0;
  if (devices < 1 || devices > kMostDevices) {
    refuse("`" + text + "`: the number of devices, from 1 to " + std::to_string(kMostDevices) +
           ", comes first, and settings behind it after commas, as in `4,memory=2GiB`");
  }
  return static_cast<int>(devices);
}

bool on(const std::string& text) {
  if (text != "on" && text != "off") {
    refuse("`" + text + "` is neither `on` nor `off`");
  }
  return text == "on";
}

// An empty name would mean that nothing is requested.
const std::string& named(const std::string& text) {
  if (text.empty()) {
    refuse("a name is missing behind `=`");
  }
  return text;
}

using Setter = std::function<void(Settings&, const std::string&)>;

// `12`, or `12@1` for device 1.
Setter fault(const std::string& what) {
  return [what](Settings& own, const std::string& text) {
    const auto at = text.find('@');
    const uint64_t number = whole(text.substr(0, at));
    if (number == 0) {
      refuse("`" + text + "`: the first is number 1");
    }
    if (at == std::string::npos) {
      own.faults.push_back({what, -1, number});
      return;
    }
    const uint64_t device = whole(text.substr(at + 1));
    if (device >= uint64_t(own.devices)) {
      refuse("`" + text + "`: there is no such device among " + std::to_string(own.devices) + ", numbered from 0");
    }
    own.faults.push_back({what, static_cast<int>(device), number});
  };
}

const std::map<std::string, Setter>& setters() {
  static const auto* all = new std::map<std::string, Setter>{
      {"memory", [](Settings& own, const std::string& text) { own.memory = size_t(more_than_none(bytes(text), text)); }},
      {"delay", [](Settings& own, const std::string& text) { own.delay = seconds(text); }},
      {"seed", [](Settings& own, const std::string& text) { own.seed = whole(text); }},
      {"latency", [](Settings& own, const std::string& text) { own.latency = seconds(text); }},
      {"bandwidth", [](Settings& own, const std::string& text) { own.bandwidth = more_than_none(rate(text), text); }},
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
      {"time", [](Settings& own, const std::string& text) { own.time = named(text); }},
      {"trace", [](Settings& own, const std::string& text) { own.trace = named(text); }},
  };
  return *all;
}

// Refuses settings that have no effect if only time passes: nothing runs that could be late, be
// checked or fail, and the model gives the time of a copy.
void refuse_with_time(const std::string& word) {
  static const auto* none = new std::vector<std::string>{
      "delay=", "seed=", "latency=", "bandwidth=", "poison=on", "checks=on", "fail-transfer=", "fail-kernel=", "stall-kernel="};
  for (const auto& begin : *none) {
    if (word.compare(0, begin.size(), begin) == 0) {
      refuse("`" + word + "` does nothing with time=, where only the time passes, as a model of the device says");
    }
  }
}

// Checks at the start that the file written at the end can be.
void try_trace(const std::string& path) {
  FILE* file = path.empty() ? nullptr : fopen(path.c_str(), "a");
  if (file != nullptr) {
    fclose(file);
  } else if (!path.empty()) {
    refuse("trace=" + path + " cannot be written: " + std::strerror(errno));
  }
}

struct Own {
  Settings settings;
  std::string error;

  Own() {
    const char* text = std::getenv("GPIPE_SIMULATE_GPUS");
    try {
      auto asked = parse(text == nullptr ? "" : text);
      try_trace(asked.trace);
      settings = std::move(asked);
    } catch (const std::invalid_argument& wrong) {
      error = std::string("settings of simulated GPUs: ") + wrong.what();
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
  // The extra comma yields an empty last word, which getline would drop.
  std::istringstream words(text + ",");
  std::string word;
  std::vector<std::string> asked;
  while (std::getline(words, word, ',')) {
    asked.push_back(word);
  }
  out.devices = device_count(asked.front());
  asked.erase(asked.begin());
  for (const auto& word : asked) {
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
  if (out.time.empty() && !out.trace.empty()) {
    refuse("trace= needs time=: it is the simulated time that it shows");
  }
  size_t memory = kMemory;
  if (!out.time.empty()) {
    std::for_each(asked.begin(), asked.end(), refuse_with_time);
    memory = timing::device_model(out.time).memory;
    out.poison = out.checks = false;
  }
  out.memory = out.memory == 0 ? memory : out.memory;
  return out;
}

const Settings& settings() { return own().settings; }
const std::string& settings_error() { return own().error; }

}  // namespace sim
