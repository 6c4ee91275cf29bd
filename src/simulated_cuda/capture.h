// Captures: the work of streams that is written down in the place of being run.
#pragma once

#include "stream.h"

#include <map>
#include <utility>

namespace sim {

// As cudaStreamCaptureMode: whose unsafe calls end a capture. Of all threads; of the thread that
// began it; of none.
enum class CaptureMode { global, own_thread, relaxed };

struct Capture {
  using Pool = std::pair<unsigned long long, unsigned long long>;
  // By stream, how many of its entries come before.
  using Clock = std::map<const Stream*, uint64_t>;

  Capture(Stream& origin, Pool pool, CaptureMode mode);
  ~Capture();

  // Ends the capture with this error (which is thrown).
  [[noreturn]] void break_off(const std::string& why);

  void add(const Stream& stream, Entry entry);
  // Memory was handed out in the capture: in every replay, what is there then is nobody's.
  void handed_out(const void* address, size_t size);
  // A point recorded in a stream of the capture.
  void recorded(const Stream& stream, Point& point);
  // A stream waits for a point: it joins the capture if it is not in it yet.
  void waited(Stream& stream, const Point& point);
  // Leaves all streams; an error if one that joined has work that the origin has not waited for.
  void end();
  // No stream is in it any more.
  void leave();

  Stream& origin;
  const Pool pool;
  const CaptureMode mode;
  bool broken = false;
  // Whether any of the entries does something that the program has asked for.
  bool computes = false;
  std::vector<Entry> entries;
  // Draws from the device's default generator, and the offset from which the present replay
  // draws: each replay draws what the same calls would draw then.
  uint64_t draws = 0;
  uint64_t random_offset = 0;

 private:
  std::map<const Stream*, Clock> clocks;
};

// A call that may wait or have others wait, which captures refuse: the one that the calling
// thread has begun, and all in the global mode.
void unsafe_in_captures();

}  // namespace sim
