// Captures: streams' work recorded instead of run.
#pragma once

#include "stream.h"

#include <map>
#include <utility>

namespace sim {

// cudaStreamCaptureMode: the threads whose unsafe calls end a capture. All threads; the one that
// began it; none.
enum class CaptureMode { global, own_thread, relaxed };

struct Capture {
  using Pool = std::pair<unsigned long long, unsigned long long>;
  // Number of preceding entries by stream.
  using Clock = std::map<const Stream*, uint64_t>;

  Capture(Stream& origin, Pool pool, CaptureMode mode);
  ~Capture();

  // Ends the capture with this error (which is thrown).
  [[noreturn]] void break_off(const std::string& why);

  void add(const Stream& stream, Entry entry);
  // Memory was handed out in the capture: in every replay its content is then undefined.
  void handed_out(const void* address, size_t size);
  // A point recorded in a stream of the capture.
  void recorded(const Stream& stream, Point& point);
  // A stream waits for a point: it joins the capture if it is not in it yet.
  void waited(Stream& stream, const Point& point);
  // Leaves all streams; an error if a joined stream has work that the origin has not waited for.
  void end();
  // Removes all streams from the capture.
  void leave();

  Stream& origin;
  const Pool pool;
  const CaptureMode mode;
  bool broken = false;
  // Whether any entry does work that the program has asked for.
  bool computes = false;
  std::vector<Entry> entries;
  // Draws from the device's default generator, and the current replay's starting offset: each
  // replay draws what the same calls would draw then.
  uint64_t draws = 0;
  uint64_t random_offset = 0;

 private:
  std::map<const Stream*, Clock> clocks;
};

// Marks a call that may wait or make others wait, which captures refuse: the one of the calling
// thread, and all in global mode.
void unsafe_in_captures();

}  // namespace sim
