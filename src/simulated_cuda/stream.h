// Streams and the points in them that others wait for.
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
  // Every byte of it; or only from the first to the last of them.
  bool exact = true;
  // In memory of a graph, which is in use whenever the graph runs.
  bool of_graph = false;
  // In a graph: handed out here, so that what was written there before counts for nothing.
  bool fresh = false;
  // The first of an entry of a graph; of an entry that only moves bytes.
  bool begins = false;
  bool moves = false;
};

// What of a device is busy with an entry.
enum class Unit { kernel, copy_in, copy_out, copy_peer, nothing };

// Work of a stream.
struct Entry {
  std::function<void()> run;
  // The operator; lives as long as the process.
  const char* what = "";
  Unit unit = Unit::kernel;
  // What it reads and writes, where that is checked.
  std::vector<Access> accesses;
  // Where only the time passes: how long it takes, and the device that a copy goes to.
  double seconds = 0;
  int peer = -1;
};

struct Capture;
class Stream;

// What an event means from its last record on: all that was in the stream then.
struct Point {
  void finish();
  void wait();
  bool query();

  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  // When it was over, in seconds of the monotonic clock.
  double when = 0;
  // Only the time passes: `when` is known before it is over.
  bool ahead = false;
  // Recorded in a capture: it is never over. Then, by stream, the entries that come before.
  std::shared_ptr<Capture> capture;
  // What is over when it is (see checks/).
  std::vector<uint64_t> clock;
  std::map<const Stream*, uint64_t> capture_clock;
};

// Work in order, on a thread of its own. Submitting never waits.
class Stream {
 public:
  Stream(int device, int64_t id);

  // At the end of the stream, or of the capture that it is in.
  void submit(Entry entry);
  // Before the next entry that computes, or the next point: the allocator knows no later
  // moment at which nobody may use the memory any more.
  void submit_late(Entry entry);
  // What is submitted late comes now: another stream is about to write there.
  void flush_late();

  std::shared_ptr<Point> record();
  void wait(const std::shared_ptr<Point>& point);
  // The host waits for all that is in it.
  void synchronize();
  bool is_idle();

  const int device;
  const int64_t id;
  // Of all streams of the process, from 0.
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
  // When all that is in it is over, where only the time passes.
  double over = 0;
  std::mt19937_64 random;
};

// Streams live as long as the process. Stream 0 is the default one; as libtorch's streams do
// not wait for it (cudaStreamNonBlocking), it is a stream as any other, but for captures.
Stream& stream(int device, int64_t id);
// The next of the pool's 32, which come round.
Stream& next_pool_stream(int device);
// The same of the pool of streams of high priority, which are no faster here.
Stream& next_high_priority_stream(int device);
std::vector<Stream*> streams_of(int device);
void synchronize_device(int device);
// The host will not wait for what streams still do: they stop first where the process ends.
void stop_first_at_the_end();

// The calling thread's device, and its stream on a device.
int& current_device();
int64_t& current_stream_id(int device);
inline Stream& current_stream(int device) { return stream(device, current_stream_id(device)); }

// Seconds of the monotonic clock.
double now();

// A word that lives as long as the process.
const char* interned(const std::string& text);

}  // namespace sim
