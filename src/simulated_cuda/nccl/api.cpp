// NCCL's functions, by their names and with the types of its version 2.14.
#include "communicator.h"

#include "../address_space.h"
#include "../capture.h"

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#define NCCL extern "C" __attribute__((visibility("default")))

namespace {

using sim::nccl::Communicator;
using sim::nccl::Meeting;
using sim::nccl::Piece;
using namespace sim;

struct UniqueId {
  char bytes[128];
};

struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

struct All {
  std::mutex mutex;
  std::set<Communicator*> known;
  std::set<Communicator*> aborted;

  static All& get() {
    static auto* own = new All();
    return *own;
  }
};

// Operations requested by a thread between the begin and the end of a group.
struct Asked {
  Communicator* communicator;
  Stream* stream;
  std::vector<Piece> pieces;
};
thread_local int depth = 0;
thread_local std::vector<Asked> group;

int refused(nccl::Result result, const std::string& why) {
  nccl::last_error() = why;
  return result;
}

Communicator* alive(void* handle, const char* who) {
  auto& all = All::get();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto* own = static_cast<Communicator*>(handle);
  if (all.aborted.count(own) != 0) {
    nccl::mistake(std::string(who) + " of a communicator that was aborted");
    return nullptr;
  }
  return all.known.count(own) != 0 ? own : nullptr;
}

bool is_stream_of(int device, void* stream) {
  for (auto* own : streams_of(device)) {
    if (own == stream) {
      return true;
    }
  }
  return false;
}

int submit(std::vector<Asked> all) {
  int result = nccl::success;
  for (auto& own : all) {
    const auto now = own.communicator->submit(*own.stream, std::move(own.pieces));
    if (now != nccl::in_progress && now != nccl::success) {
      return refused(now, "the communicator is not ready");
    }
    result = now;
  }
  return result;
}

int ask(const char* what, void* handle, void* stream, int peer, Piece piece) {
  auto* own = alive(handle, what);
  if (own == nullptr) {
    return refused(nccl::invalid_argument, "no such communicator");
  }
  const auto device = std::to_string(own->device);
  if (peer != 1 - own->rank) {
    return refused(nccl::invalid_argument, "no such rank");
  }
  if (!is_stream_of(own->device, stream)) {
    nccl::mistake(std::string(what) + " on a stream that is not of cuda:" + device);
    return refused(nccl::invalid_usage, "a stream of another device");
  }
  if (static_cast<Stream*>(stream)->capture) {
    nccl::mistake(std::string(what) + " is captured into a graph");
    return refused(nccl::invalid_usage, "a stream that is being captured");
  }
  if (device_of(piece.from) != own->device) {
    nccl::mistake(std::string(what) + " of memory that is not of cuda:" + device);
    return refused(nccl::invalid_argument, "memory of another device");
  }
  auto* place = static_cast<Stream*>(stream);
  const bool goes_on = !group.empty() && group.back().communicator == own && group.back().stream == place;
  if (!goes_on) {
    group.push_back({own, place, {}});
  }
  group.back().pieces.push_back(piece);
  return depth > 0 ? nccl::success : submit(std::exchange(group, {}));
}

}  // namespace

NCCL int ncclGetVersion(int* version) {
  *version = 22809;
  return nccl::success;
}

NCCL const char* ncclGetErrorString(int result) {
  static const char* const words[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                      "invalid argument", "invalid usage", "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return result >= 0 && result < 8 ? words[result] : "unknown result code";
}

NCCL const char* ncclGetLastError(void*) { return nccl::last_error().c_str(); }

NCCL int ncclGetUniqueId(UniqueId* id) {
  const auto meeting = nccl::new_meeting();
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->bytes, &meeting, sizeof(meeting));
  return meeting.port == 0 ? refused(nccl::system_error, "no socket") : nccl::success;
}

NCCL int ncclCommInitRankConfig(void** out, int ranks, UniqueId id, int rank, const Config* config) {
  if (config == nullptr || config->magic != 0xcafebeef || config->size < sizeof(Config) || config->version < 21400) {
    return refused(nccl::invalid_argument, "a configuration that was not initialized");
  }
  if (config->blocking != 0 || ranks != 2 || rank < 0 || rank > 1) {
    return refused(nccl::invalid_argument, "simulated are communicators of two ranks whose calls do not block");
  }
  Meeting meeting;
  std::memcpy(&meeting, id.bytes, sizeof(meeting));
  auto& all = All::get();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto* own = new Communicator(meeting, rank, current_device());
  all.known.insert(own);
  *out = own;
  return nccl::in_progress;
}

NCCL int ncclCommGetAsyncError(void* handle, int* state) {
  auto* own = alive(handle, "ncclCommGetAsyncError");
  if (own == nullptr) {
    return refused(nccl::invalid_argument, "no such communicator");
  }
  *state = own->state();
  return nccl::success;
}

NCCL int ncclCommAbort(void* handle) {
  auto* own = alive(handle, "ncclCommAbort");
  if (own == nullptr) {
    return refused(nccl::invalid_argument, "no such communicator");
  }
  {
    auto& all = All::get();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.aborted.insert(own);
  }
  return own->abort();
}

NCCL int ncclGroupStart() {
  ++depth;
  return nccl::success;
}

NCCL int ncclGroupEnd() {
  if (depth == 0) {
    return refused(nccl::invalid_usage, "no group was begun");
  }
  return --depth > 0 ? nccl::success : submit(std::exchange(group, {}));
}

NCCL int ncclSend(const void* from, size_t count, int type, int peer, void* handle, void* stream) {
  if (type > 1) {
    return refused(nccl::invalid_argument, "simulated are transfers of bytes");
  }
  return ask("ncclSend", handle, stream, peer, {true, static_cast<char*>(const_cast<void*>(from)), count});
}

NCCL int ncclRecv(void* to, size_t count, int type, int peer, void* handle, void* stream) {
  if (type > 1) {
    return refused(nccl::invalid_argument, "simulated are transfers of bytes");
  }
  return ask("ncclRecv", handle, stream, peer, {false, static_cast<char*>(to), count});
}

