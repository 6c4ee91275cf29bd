#include "locked.h"

#include "../address_space.h"

#include <csignal>
#include <cstdlib>
#include <list>
#include <sys/mman.h>
#include <ucontext.h>

namespace sim::checks {

namespace {

constexpr uintptr_t kPage = 4096;

struct Held {
  Access access;
  Use use;
};

std::list<Held>& all_held() {
  static auto* held = new std::list<Held>();
  return *held;
}

char* page_of(const char* at) { return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(at) / kPage * kPage); }
char* pages_end(const char* to) { return page_of(to + kPage - 1); }

bool overlap(const Access& access, const char* from, const char* to) { return access.from < to && from < access.to; }

void protect(const char* from, const char* to, int protection) {
  mprotect(page_of(from), size_t(pages_end(to) - page_of(from)), protection);
}

// Sets the protection of the pages of a range to what the held accesses allow.
void protect_again(const char* from, const char* to) {
  const auto *begin = page_of(from), *end = pages_end(to);
  protect(begin, end, PROT_READ | PROT_WRITE);
  for (const bool write : {false, true}) {
    for (const auto& held : all_held()) {
      if (held.access.write == write && page_of(held.access.from) < end && begin < pages_end(held.access.to)) {
        protect(std::max<const char*>(begin, held.access.from), std::min<const char*>(end, held.access.to),
                write ? PROT_NONE : PROT_READ);
      }
    }
  }
}

bool is_write(const void* context) {
#ifdef __x86_64__
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  (void)context;
  return true;
#endif
}

struct sigaction before;

// The host touched a page of a held range. Pages are larger than tensors: memory beside a held one
// may be used, and mistakes there are not found.
void touched(int number, siginfo_t* info, void* context) {
  const auto* at = static_cast<const char*>(info->si_addr);
  if (!is_page_locked(at)) {
    sigaction(number, &before, nullptr);  // comes again, to whom it belongs
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  const bool write = is_write(context);
  for (const auto& held : all_held()) {
    if (World::on() && overlap(held.access, at, at + 1) && (write || held.access.write)) {
      world.report(std::string("the host (thread ") + thread_name() + ") " + (write ? "writes" : "reads") + " " +
                       name_of(held.access.from, held.access.to) + ", page-locked, which " + held.use.what + " " +
                       (held.access.write ? "writes" : "reads") + " on " +
                       name_of(world.streams[held.use.stream]) + " (thread " + held.use.thread +
                       "), and has not waited for that",
                   held.access.from, held.access.to);
      abort();
    }
  }
  protect(at, at + 1, PROT_READ | PROT_WRITE);
}

void watch() {
  static const bool watching = [] {
    struct sigaction own {};
    own.sa_sigaction = touched;
    own.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &own, &before);
    return true;
  }();
  (void)watching;
}

}  // namespace

void hold(World&, const Access& access, const Use& use) {
  watch();
  for (auto& held : all_held()) {
    const bool same = held.access.from == access.from && held.access.to == access.to &&
        held.access.write == access.write && held.use.stream == use.stream;
    if (same) {
      held.use = use;
      return;
    }
  }
  all_held().push_back({access, use});
  protect_again(access.from, access.to);
}

void release_held(World& world) {
  auto& held = all_held();
  for (auto own = held.begin(); own != held.end();) {
    if (of(world.host, own->use.stream) < own->use.at) {
      ++own;
      continue;
    }
    const auto access = own->access;
    own = held.erase(own);
    protect_again(access.from, access.to);
  }
}

void release_held(World&, const char* from, const char* to) {
  all_held().remove_if([&](const Held& held) { return overlap(held.access, from, to); });
  protect_again(from, to);
}

}  // namespace sim::checks
