// The settings text: its meaning, and what is refused.
#include "../settings.h"
#include "test.h"

using sim::parse;
using test::that;

namespace {

void refuses(const std::string& settings, const std::string& part) {
  try {
    test::refused([&] { parse(settings); }, part);
  } catch (const std::exception& why) {
    throw std::runtime_error("`" + settings + "`: " + why.what());
  }
}

}  // namespace

TEST(settings_are_what_the_text_says) {
  const auto own = parse("4,memory=1.5GiB,delay=300us,seed=7,latency=2ms,bandwidth=1GB/s,fail-kernel=3@2");
  that(own.devices == 4 && own.memory == size_t(3) << 29 && own.seed == 7, "devices, memory or seed");
  that(own.delay == 300 * 1e-6 && own.latency == 2 * 1e-3 && own.bandwidth == 1e9, "delay, latency or bandwidth");
  that(own.faults.size() == 1 && own.faults[0].device == 2 && own.faults[0].number == 3, "faults");
  that(parse("64").memory == size_t(16) << 30, "memory by default");
  that(parse("2,time=h100,checks=off,fail-allocation=3").faults.size() == 1, "allocations of timed devices");
}

TEST(the_number_of_devices_is_asked_for_in_words) {
  for (const char* wrong : {"", "abc", "0", "65", "0x2", "1e1", "2.0", " 2", "-1", ",seed=1", "4:memory=1GiB"}) {
    refuses(wrong, "the number of devices, from 1 to 64, comes first, and settings behind it after commas");
  }
}

TEST(a_wrong_value_is_refused) {
  refuses("4,", "unknown setting ``");
  refuses("4,,seed=1", "unknown setting ``");
  refuses("4,memory=0B", "`0B`: more than that");
  refuses("4,memory=0x1GiB", "units are");
  refuses("4,memory=1.2.3GiB", "is no number");
  refuses("4,memory=infGiB", "is no number");
  refuses("4,bandwidth=0GB/s", "`0GB/s`: more than that");
  refuses("4,seed=1e3", "is no whole number");
  refuses("4,seed=99999999999999999999", "is no whole number");
  refuses("4,time=", "a name is missing");
}

TEST(a_fault_is_of_a_device_that_there_is) {
  refuses("4,fail-kernel=1@9", "no such device among 4");
  refuses("4,fail-kernel=1@4", "no such device among 4");
  refuses("4,fail-kernel=1@", "is no whole number");
  refuses("4,fail-kernel=0", "the first is number 1");
  parse("4,fail-kernel=1@3");
}

TEST(what_does_nothing_where_only_the_time_passes_is_refused) {
  for (const std::string setting : {"delay=1ms", "seed=2", "latency=1us", "bandwidth=1GB/s", "poison=on", "checks=on",
                                    "fail-kernel=3", "fail-transfer=3", "stall-kernel=3"}) {
    refuses("4,time=h100," + setting, "`" + setting + "` does nothing with time=");
    refuses("4," + setting + ",time=h100", "`" + setting + "` does nothing with time=");
    parse("4," + setting);
  }
}
