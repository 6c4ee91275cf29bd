// Meeting of two ranks: rank 0 listens where it made the id, the other one connects.
#include "communicator.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <sstream>

namespace sim::nccl {

namespace {

using Clock = std::chrono::steady_clock;

struct Waiting {
  std::mutex mutex;
  // Rank 0's listener by id.
  std::map<uint64_t, int> listeners;
  // Ranks waiting for their peer.
  std::set<std::string> ranks;

  static Waiting& get() {
    static auto* own = new Waiting();
    return *own;
  }
};

// Longer than any sequence of calls that does finish.
std::chrono::milliseconds patience() {
  const char* text = std::getenv("GPIPE_FAKE_NCCL_PATIENCE_MS");
  return std::chrono::milliseconds(text != nullptr ? std::atoi(text) : 20000);
}

sockaddr_in address(uint16_t port) {
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  own.sin_port = htons(port);
  return own;
}

// The listener of an id, returned once; -1 if rank 0 has not made it in this process.
int listener_of(uint64_t word) {
  auto& waiting = Waiting::get();
  std::lock_guard<std::mutex> lock(waiting.mutex);
  const auto found = waiting.listeners.find(word);
  if (found == waiting.listeners.end()) {
    return -1;
  }
  const int listener = found->second;
  waiting.listeners.erase(found);
  return listener;
}

// Waits for the other rank; -1 if it does not come.
int accepted(int listener, const std::atomic<bool>& given_up) {
  const auto until = Clock::now() + patience();
  int link = -1;
  while (link < 0 && !given_up && Clock::now() < until) {
    pollfd asked{listener, POLLIN, 0};
    if (poll(&asked, 1, 20) > 0) {
      link = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    }
  }
  close(listener);
  return link;
}

int connected(uint16_t port) {
  const int link = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto there = address(port);
  if (link >= 0 && connect(link, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) != 0) {
    close(link);
    return -1;
  }
  return link;
}

// Both announce themselves: a connected rank may still be the only one.
bool greeted(int link, const std::atomic<bool>& given_up) {
  const char own = 1;
  if (send(link, &own, 1, MSG_NOSIGNAL) != 1) {
    return false;
  }
  const auto until = Clock::now() + patience();
  while (!given_up && Clock::now() < until) {
    pollfd asked{link, POLLIN, 0};
    if (poll(&asked, 1, 20) > 0) {
      char other = 0;
      return recv(link, &other, 1, 0) == 1;
    }
  }
  return false;
}

std::string waiting_ranks() {
  auto& waiting = Waiting::get();
  std::lock_guard<std::mutex> lock(waiting.mutex);
  std::ostringstream all;
  for (const auto& rank : waiting.ranks) {
    all << "; " << rank;
  }
  return all.str();
}

}  // namespace

Meeting new_meeting() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto own = address(0);
  socklen_t size = sizeof(own);
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&own), size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return {};
  }
  std::random_device random;
  const uint64_t word = (uint64_t(random()) << 32) | random();
  auto& waiting = Waiting::get();
  std::lock_guard<std::mutex> lock(waiting.mutex);
  waiting.listeners[word] = listener;
  return {word, ntohs(own.sin_port)};
}

int link_of(const Meeting& meeting, int rank, const std::string& who, const std::atomic<bool>& given_up, std::string& why) {
  auto& waiting = Waiting::get();
  {
    std::lock_guard<std::mutex> lock(waiting.mutex);
    waiting.ranks.insert(who);
  }
  int link = -1;
  if (rank == 0) {
    const int listener = listener_of(meeting.word);
    if (listener < 0) {
      why = "rank 0 has to be where the unique id was made, and uses it once";
    } else {
      link = accepted(listener, given_up);
    }
  } else {
    link = connected(meeting.port);
  }
  if (link >= 0 && !greeted(link, given_up)) {
    close(link);
    link = -1;
  }
  if (link < 0 && why.empty()) {
    why = "the other rank does not come: a deadlock, if it waits for another communicator first. In this process wait" +
          waiting_ranks();
  }
  if (link >= 0) {
    const int on = 1;
    setsockopt(link, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  std::lock_guard<std::mutex> lock(waiting.mutex);
  waiting.ranks.erase(who);
  return link;
}

}  // namespace sim::nccl
