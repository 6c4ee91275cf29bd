#include "communicator.h"

#include "../address_space.h"
#include "../checks/world.h"
#include "../settings.h"
#include "../timing/clock.h"
#include "../timing/cost.h"
#include "../transfers.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace sim::nccl {

namespace {

// Sent before each piece, so that both ranks can check that they mean the same one.
struct Announced {
  uint64_t number = 0;
  uint64_t bytes = 0;
};

// First message between two ranks.
struct Hello {
  int rank = 0;
  int device = 0;
};

std::string piece(uint64_t number, uint64_t bytes) {
  return "transfer " + std::to_string(number) + " of " + std::to_string(bytes) + " bytes";
}

}  // namespace

void mistake(const std::string& what) {
  auto& world = checks::World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  world.report("NCCL: " + what, nullptr, nullptr);
}

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

Communicator::Communicator(const Meeting& meeting, int rank, int device) : rank(rank), device(device) {
  std::thread([this, meeting] { meet(meeting); }).detach();
}

void Communicator::meet(Meeting meeting) {
  static std::atomic<int> next{0};
  const auto who = "rank " + std::to_string(rank) + " on cuda:" + std::to_string(device) + " (init " + std::to_string(next++) + ")";
  std::string why;
  const int found = link_of(meeting, rank, who, aborted, why);
  if (found < 0) {
    if (!aborted) {
      fprintf(stderr, "simulated NCCL: %s: %s\n", who.c_str(), why.c_str());
    }
    told_state(system_error);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex);
    link = found;
    if (aborted) {
      shutdown(link, SHUT_RDWR);
    }
  }
  Hello own{rank, device}, other;
  const bool met = write(&own, sizeof(own)) && read(&other, sizeof(other));
  const bool apart = other.rank == 1 - rank && other.device != device;
  if (met && !apart) {
    fprintf(stderr, "simulated NCCL: %s: the other one has rank %d and cuda:%d too\n", who.c_str(), other.rank, other.device);
  }
  told_state(!met ? remote_error : apart ? success : invalid_usage);
}

void Communicator::told_state(Result result) {
  std::lock_guard<std::mutex> lock(mutex);
  if (now == in_progress || now == success) {
    now = result;
  }
  changed.notify_all();
}

Result Communicator::state() {
  std::lock_guard<std::mutex> lock(mutex);
  if (aborted) {
    return invalid_usage;
  }
  return now;
}

Result Communicator::submit(Stream& stream, std::vector<Piece> pieces) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (aborted) {
      return invalid_usage;
    }
    if (now != success) {
      return now == in_progress ? invalid_argument : now;
    }
    now = in_progress;
    ++under_way;
  }
  // NCCL's call returns before its kernel is in the stream.
  std::thread([this, &stream, pieces = std::move(pieces)] {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    submit_now(stream, pieces);
  }).detach();
  return in_progress;
}

void Communicator::submit_now(Stream& stream, const std::vector<Piece>& pieces) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (aborted) {
      --under_way;
      changed.notify_all();
      return;
    }
  }
  Entry entry;
  entry.what = pieces.front().out ? "ncclSend" : "ncclRecv";
  entry.unit = Unit::copy_peer;
  size_t bytes = 0;
  for (const auto& own : pieces) {
    // Between values that share memory some bytes may be unwritten.
    entry.accesses.push_back({own.from, own.from + own.bytes, !own.out, false});
    bytes += own.bytes;
  }
  if (timing::on()) {
    entry.seconds = timing::model().peer_copy(double(bytes));
    entry.peer = device;
  }
  entry.run = [this, pieces] { run(pieces); };
  auto result = success;
  try {
    stream.submit(std::move(entry));
  } catch (const std::exception& error) {
    fprintf(stderr, "simulated NCCL: %s\n", error.what());
    result = internal_error;
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (result != success || timing::on()) {
    --under_way;
  }
  if (now == in_progress) {
    now = result;
  }
  changed.notify_all();
}

// Runs on the stream's thread and blocks it, like a kernel that waits for the other rank.
void Communicator::run(const std::vector<Piece>& pieces) {
  bool moved = true;
  if (transfers::fails()) {
    moved = false;
    told_state(remote_error);
  }
  for (const auto& own : pieces) {
    moved = moved && move(own);
  }
  auto& counts = transfers::counts();
  ++(moved ? counts.done : counts.freed);
  if (!moved) {
    wait_for_abort();
  }
  std::lock_guard<std::mutex> lock(mutex);
  --under_way;
  changed.notify_all();
}

bool Communicator::move(const Piece& own) {
  auto* bytes = static_cast<char*>(bytes_of(own.from));
  char taken = 1;
  if (own.out) {
    const Announced announced{sent++, own.bytes};
    return write(&announced, sizeof(announced)) && write(bytes, own.bytes) && read(&taken, 1);
  }
  Announced other;
  const uint64_t number = received++;
  if (!read(&other, sizeof(other))) {
    return false;
  }
  if (other.number != number || other.bytes != own.bytes) {
    mistake("rank " + std::to_string(rank) + " on cuda:" + std::to_string(device) + " receives " + piece(number, own.bytes) +
            ", and the other rank sends " + piece(other.number, other.bytes));
    told_state(internal_error);
    return false;
  }
  return read(bytes, own.bytes) && write(&taken, 1);
}

bool Communicator::read(void* to, size_t bytes) {
  auto* place = static_cast<char*>(to);
  while (bytes > 0) {
    const auto came = recv(link, place, bytes, 0);
    if (came <= 0) {
      return false;
    }
    place += came;
    bytes -= size_t(came);
  }
  return true;
}

bool Communicator::write(const void* from, size_t bytes) {
  const auto* place = static_cast<const char*>(from);
  while (bytes > 0) {
    const auto went = ::send(link, place, bytes, MSG_NOSIGNAL);
    if (went <= 0) {
      return false;
    }
    place += went;
    bytes -= size_t(went);
  }
  return true;
}

// Within a host, a rank does not notice that its peer is gone: its kernel waits forever.
void Communicator::wait_for_abort() {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return aborted.load(); });
}

Result Communicator::abort() {
  std::unique_lock<std::mutex> lock(mutex);
  if (aborted) {
    return invalid_usage;
  }
  aborted = true;
  if (link >= 0) {
    shutdown(link, SHUT_RDWR);
  }
  changed.notify_all();
  // Also waits for work behind others in its stream, as NCCL does: a thread that aborts
  // communicators one after another may wait forever.
  const char* text = std::getenv("GPIPE_FAKE_NCCL_PATIENCE_MS");
  const auto patience = std::chrono::milliseconds(text != nullptr ? std::atoi(text) : 20000);
  if (!changed.wait_for(lock, patience, [&] { return under_way == 0; })) {
    lock.unlock();
    mistake("an abort waits for work behind that of a communicator which nobody aborts");
    return internal_error;
  }
  return success;
}

}  // namespace sim::nccl
