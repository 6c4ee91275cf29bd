// Streams and the points in them that can be waited for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace sim {

// A range of a device's memory that an entry reads or writes.
struct Access {
  const char* from = nullptr;
  const char* to = nullptr;
  bool write = false;
  // Whether it covers every byte, or only lies between the first and the last.
  bool exact = true;
  // In memory of a graph, which is in use whenever the graph runs.
  bool of_graph = false;
  // In a graph: handed out here, so that earlier writes are ignored.
  bool fresh = false;
  // First access of an entry in a graph; access of an entry that only moves bytes.
  bool begins = false;
  bool moves = false;
};

// The unit of a device that an entry keeps busy.
enum class Unit { kernel, copy_in, copy_out, copy_peer, nothing };

// Work of a stream.
struct Entry {
  std::function<void()> run;
  // The operator; lives as long as the process.
  const char* what = "";
  Unit unit = Unit::kernel;
  // Memory that it reads and writes, if that is checked.
  std::vector<Access> accesses;
  // If only time passes: its duration, and the device that a copy goes to.
  double seconds = 0;
  int peer = -1;
};

struct Capture;
class Stream;

// Meaning of an event since its last record: all work in the stream at that time.
struct Point {
  void finish();
  void wait();
  bool query();

  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  // Time at which it was over, in seconds of the monotonic clock.
  double when = 0;
  // If only time passes: `when` is known in advance.
  bool ahead = false;
  // The capture in which it was recorded, so that it is never over. Then by stream: the entries
  // before it.
  std::shared_ptr<Capture> capture;
  // Work that is over when it is (see checks/).
  std::vector<uint64_t> clock;
  std::map<const Stream*, uint64_t> capture_clock;
};

// Work in order, on its own thread. Submitting never waits.
class Stream {
 public:
  Stream(int device, int64_t id);

  // Appends to the stream, or to the capture that it is in.
  void submit(Entry entry);
  // Inserts before the next entry that computes, or the next point: the last moment at which the
  // allocator can rely on the memory being unused.
  void submit_late(Entry entry);
  // Inserts the late entries now: another stream is about to write there.
  void flush_late();

  std::shared_ptr<Point> record();
  void wait(const std::shared_ptr<Point>& point);
  // Makes the host wait for all entries.
  void synchronize();
  bool is_idle();

  const int device;
  const int64_t id;
  // Number among all streams of the process, from 0.
  const size_t number;
  std::shared_ptr<Capture> capture;

 private:
  void push(Entry entry);
  std::shared_ptr<Point> record_ahead();
  void run();

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> queue;
  std::vector<Entry> late;
  uint64_t submitted = 0;
  uint64_t done = 0;
  bool started = false;
  // Time at which all entries are over, if only time passes.
  double over = 0;
  std::mt19937_64 random;
};

// Streams live as long as the process. Stream 0 is the default one; as libtorch's streams do not
// wait for it (cudaStreamNonBlocking), it is a stream like any other, except in captures.
Stream& stream(int device, int64_t id);
// The next of the pool's 32 streams, in rotation.
Stream& next_pool_stream(int device);
// The same for the pool of high priority, which is no faster here.
Stream& next_high_priority_stream(int device);
std::vector<Stream*> streams_of(int device);
void synchronize_device(int device);
// The host will not wait for streams' remaining work: they stop first when the process ends.
void stop_first_at_the_end();

// The calling thread's device, and its stream on a device.
int& current_device();
int64_t& current_stream_id(int device);
inline Stream& current_stream(int device) { return stream(device, current_stream_id(device)); }

// Seconds of the monotonic clock.
double now();

// A string that lives as long as the process.
const char* interned(const std::string& text);

}  // namespace sim
