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

// What a rank is called by until the other one has come.
struct Meeting {
  uint64_t word = 0;
  uint16_t port = 0;
};

// Memory that goes to the other rank, or comes from it.
struct Piece {
  bool out = false;
  char* from = nullptr;
  size_t bytes = 0;
};

// It lives as long as the process, so that a use after its end is found.
class Communicator {
 public:
  Communicator(const Meeting& meeting, int rank, int device);

  // Puts the pieces at the end of a stream, soon: the state is `in_progress` until they are.
  Result submit(Stream& stream, std::vector<Piece> pieces);
  // Frees both ranks' work here, and waits until it is over.
  Result abort();
  // What became of the last call.
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
  // Submitted, and not over.
  int under_way = 0;
  // Messages of each direction so far.
  uint64_t sent = 0;
  uint64_t received = 0;
};

// A word by which two ranks find each other; the one that is rank 0 calls this.
Meeting new_meeting();
// Connects with the other rank; -1 with the reason where it does not come. `given_up` ends it.
int link_of(const Meeting& meeting, int rank, const std::string& who, const std::atomic<bool>& given_up, std::string& why);

// Something that NCCL would not say, or take for a hang: prints it, and has the process end badly.
void mistake(const std::string& what);
// The last of what failed.
std::string& last_error();

}  // namespace sim::nccl
