// A communicator of two ranks: a socket between them, and work in streams that moves memory over it.
#pragma once

#include "../stream.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sim::nccl {

enum Result { success = 0, system_error = 2, internal_error = 3, invalid_argument = 4, invalid_usage = 5, remote_error = 6, in_progress = 7 };

// Where and under which id two ranks meet.
struct Meeting {
  uint64_t word = 0;
  uint16_t port = 0;
};

// Memory sent to the other rank, or received from it.
struct Piece {
  bool out = false;
  char* from = nullptr;
  size_t bytes = 0;
};

// Lives as long as the process, so that a use after destruction is found.
class Communicator {
 public:
  Communicator(const Meeting& meeting, int rank, int device);

  // Appends the pieces to a stream, soon: the state is `in_progress` until then.
  Result submit(Stream& stream, std::vector<Piece> pieces);
  // Frees this process's work of both ranks, and waits until it is over.
  Result abort();
  // Result of the last call.
  Result state();

  const int rank;
  const int device;

 private:
  void meet(Meeting meeting);
  void told_state(Result result);
  Result failed(Result result, const std::string& why);
  void submit_now(Stream& stream, const std::vector<Piece>& pieces);
  void run(const std::vector<Piece>& pieces);
  bool move(const Piece& piece);
  bool read(void* to, size_t bytes);
  bool write(const void* from, size_t bytes);
  void wait_for_abort();

  std::mutex mutex;
  std::condition_variable changed;
  Result now = in_progress;
  std::atomic<bool> aborted{false};
  int link = -1;
  // Entries submitted and not over.
  int under_way = 0;
  // Messages so far in each direction.
  uint64_t sent = 0;
  uint64_t received = 0;
};

// Makes the id by which two ranks meet; called by rank 0.
Meeting new_meeting();
// Connects to the other rank; -1 with the reason if it does not come. `given_up` ends the wait.
int link_of(const Meeting& meeting, int rank, const std::string& who, const std::atomic<bool>& given_up, std::string& why);

// Reports a mistake that NCCL would not report, or that would hang: prints it, and makes the
// process fail.
void mistake(const std::string& what);
// The most recent error.
std::string& last_error();

}  // namespace sim::nccl
