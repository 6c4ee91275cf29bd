#include "stream.h"

#include "capture.h"
#include "checks.h"
#include "faults.h"
#include "settings.h"
#include "timing/clock.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>
#include <time.h>
#include <unistd.h>

// Prepares a stream's thread for libtorch's operators (operators/cpu_view.cpp).
void begin_stream_thread();

namespace sim {

namespace {

constexpr int64_t kPool = 32;

// When the process ends, stops streams where they are, before libtorch's statics are destroyed.
struct Ending {
  std::atomic<bool> now{false};
  std::atomic<int> working{0};

  static Ending& get() {
    static auto* ending = new Ending();
    return *ending;
  }
  static void begin() {
    auto& own = get();
    own.now = true;
    for (int wait = 0; own.working > 0 && wait < 2000; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  static void watch() {
    static const int registered = (watch_anew(), 0);
    (void)registered;
  }
  // The last handler registered runs first: before the destructors of all loaded libraries, and of
  // the statics that operators have made until now.
  static void watch_anew() { (void)std::atexit(&Ending::begin); }
};

// Most entries have no delay, some a long one.
void delay(std::mt19937_64& random) {
  const auto drawn = random();
  if (drawn % 4 == 0) {
    const double share = double(drawn >> 11) / double(uint64_t(1) << 53);
    std::this_thread::sleep_for(std::chrono::duration<double>(share * settings().delay));
  }
}

size_t next_number() {
  static std::atomic<size_t> next{0};
  return next++;
}

struct All {
  std::mutex mutex;
  std::map<std::pair<int, int64_t>, Stream*> streams;
  std::map<int, int64_t> next;
  std::map<int, int64_t> next_high;
};

All& all() {
  static auto* all = new All();
  return *all;
}

// Wraps around.
int64_t next_of(std::map<int, int64_t>& pool, int device) {
  std::lock_guard<std::mutex> lock(all().mutex);
  return pool[device]++ % kPool;
}

}  // namespace

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + double(time.tv_nsec) / 1e9;
}

const char* interned(const std::string& text) {
  static auto* mutex = new std::mutex();
  static auto* words = new std::set<std::string>();
  std::lock_guard<std::mutex> lock(*mutex);
  return words->insert(text).first->c_str();
}

void Point::finish() {
  std::lock_guard<std::mutex> lock(mutex);
  done = true;
  when = now();
  changed.notify_all();
}

void Point::wait() {
  if (ahead) {
    timing::sleep_until(when);
    return;
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done; });
}

bool Point::query() {
  if (ahead) {
    return timing::now() >= when;
  }
  std::lock_guard<std::mutex> lock(mutex);
  return done;
}

Stream::Stream(int device, int64_t id)
    : device(device), id(id), number(next_number()), random(settings().seed * 1000003 + uint64_t(device * 1009 + id)) {}

void Stream::push(Entry entry) {
  if (capture) {
    capture->add(*this, std::move(entry));
    return;
  }
  if (timing::on()) {
    over = timing::end_of(entry, device, over);
    return;
  }
  if (!started) {
    started = true;
    Ending::watch();
    std::thread([this] { run(); }).detach();
  }
  queue.push_back(std::move(entry));
  ++submitted;
  changed.notify_all();
}

void Stream::submit_late(Entry entry) {
  std::lock_guard<std::mutex> lock(mutex);
  late.push_back(std::move(entry));
}

void Stream::flush_late() {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& own : late) {
    push(std::move(own));
  }
  late.clear();
}

void Stream::submit(Entry entry) {
  faults::throw_if_lost(device);
  if (!capture) {
    faults::submitted(*this, entry);
  }
  checks::submitted(*this, entry);
  std::unique_lock<std::mutex> lock(mutex);
  if (entry.unit != Unit::nothing) {
    for (auto& own : late) {
      push(std::move(own));
    }
    late.clear();
  }
  push(std::move(entry));
  if (settings().blocking && !capture) {
    if (timing::on()) {
      timing::sleep_until(over);
      return;
    }
    const auto until = submitted;
    changed.wait(lock, [&] { return done >= until; });
  }
}

void Stream::run() {
  begin_stream_thread();
  auto& ending = Ending::get();
  for (;;) {
    Entry entry;
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return !queue.empty(); });
      entry = std::move(queue.front());
      queue.pop_front();
    }
    if (settings().delay > 0) {
      delay(random);
    }
    ++ending.working;
    if (ending.now) {
      --ending.working;
      for (;;) {
        pause();
      }
    }
    faults::run(*this, entry);
    entry = Entry();
    --ending.working;
    std::lock_guard<std::mutex> lock(mutex);
    ++done;
    changed.notify_all();
  }
}

std::shared_ptr<Point> Stream::record() {
  faults::throw_if_lost(device);
  auto point = std::make_shared<Point>();
  if (capture) {
    checks::captured(*this, "event record");
    point->capture = capture;
    capture->recorded(*this, *point);
    return point;
  }
  if (timing::on()) {
    return record_ahead();
  }
  flush_late();  // who waits for the point may write into what was taken before it
  checks::recorded(*this, *point);
  submit({[point] { point->finish(); }, "event record", Unit::nothing, {}});
  return point;
}

std::shared_ptr<Point> Stream::record_ahead() {
  auto point = std::make_shared<Point>();
  std::lock_guard<std::mutex> lock(mutex);
  point->ahead = true;
  over = point->when = std::max(over, timing::now());
  return point;
}

void Stream::wait(const std::shared_ptr<Point>& point) {
  if (capture) {
    checks::captured(*this, "event wait");
  }
  if (capture && point->capture != capture) {
    capture->break_off("dependency created on uncaptured work in another stream");
  }
  if (point->capture) {
    capture = point->capture;
    capture->waited(*this, *point);
    return;
  }
  if (timing::on()) {
    std::lock_guard<std::mutex> lock(mutex);
    over = std::max(over, point->when);
    return;
  }
  checks::waited(*this, *point);
  submit({[point] { point->wait(); }, "event wait", Unit::nothing, {}});
}

void Stream::synchronize() {
  unsafe_in_captures();
  if (capture) {
    capture->break_off("operation not permitted when stream is capturing");
  }
  Point end;
  std::unique_lock<std::mutex> lock(mutex);
  if (timing::on()) {
    const double until = over;
    lock.unlock();
    timing::sleep_until(until);
    return;
  }
  checks::recorded(*this, end);
  const auto until = submitted;
  changed.wait(lock, [&] { return done >= until; });
  lock.unlock();
  checks::host_waited(end);
  faults::throw_if_lost(device);
}

bool Stream::is_idle() {
  std::lock_guard<std::mutex> lock(mutex);
  return timing::on() ? timing::now() >= over : done == submitted;
}

Stream& stream(int device, int64_t id) {
  std::lock_guard<std::mutex> lock(all().mutex);
  auto& found = all().streams[{device, id}];
  if (found == nullptr) {
    found = new Stream(device, id);
  }
  return *found;
}

Stream& next_pool_stream(int device) {
  return stream(device, 1 + next_of(all().next, device));
}

Stream& next_high_priority_stream(int device) {
  return stream(device, 1 + kPool + next_of(all().next_high, device));
}

std::vector<Stream*> streams_of(int device) {
  std::lock_guard<std::mutex> lock(all().mutex);
  std::vector<Stream*> found;
  for (auto& [key, stream] : all().streams) {
    if (key.first == device) {
      found.push_back(stream);
    }
  }
  return found;
}

void synchronize_device(int device) {
  unsafe_in_captures();
  for (auto* stream : streams_of(device)) {
    stream->synchronize();
  }
}

void stop_first_at_the_end() { Ending::watch_anew(); }

int& current_device() {
  static thread_local int device = 0;
  return device;
}

int64_t& current_stream_id(int device) {
  static thread_local std::map<int, int64_t> current;
  return current[device];
}

}  // namespace sim
