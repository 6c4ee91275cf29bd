// Memory that is handed out, given back and handed out again.
#include "locked.h"
#include "world.h"

namespace sim::checks {

namespace {

const char* end_of(const void* address, size_t size) { return static_cast<const char*>(address) + size; }

}  // namespace

// An allocator hands memory out again on its former stream. Another stream gets it only through the
// driver, which waits for the whole device.
void taken(const void* address, size_t size, Stream& stream) {
  if (!World::on()) {
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  const auto* from = static_cast<const char*>(address);
  const auto* to = end_of(address, size);
  world.allocations[from] = {to, {}, bool(stream.capture)};
  if (stream.capture) {
    // Nothing happens to it yet: graphs of one pool take turns in its memory when they run.
    world.shadow.over(from, to, [&](const char*, Cell& cell) {
      if (cell.owner != stream.number) {
        cell = Cell{cell.to, stream.number};
      }
    });
  } else {
    world.shadow.renew(from, to, stream.number, [&](const Cell& cell, const Use& use) {
      return cell.owner == stream.number && !world.is_before(use, stream);
    });
  }
  world.note(from, to, stream.capture ? "taken in a capture on" : "taken on", &stream);
}

// The allocator waits for the streams that it knows to have used the memory.
void freed(const void* address, size_t size) {
  if (!World::on()) {
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  const auto* from = static_cast<const char*>(address);
  auto found = world.allocations.find(from);
  if (found == world.allocations.end()) {
    return;
  }
  const auto users = std::move(found->second.users);
  world.allocations.erase(found);
  const auto* to = end_of(address, size);
  world.note(from, to, "freed", nullptr);
  if (users.empty()) {
    return;
  }
  Clock over;
  for (const size_t user : users) {
    join(over, world.clocks[user]);
  }
  world.shadow.over(from, to, [&](const char*, Cell& cell) {
    Shadow::prune(cell, [&](const Cell&, const Use& use) { return use.at > of(over, use.stream); });
  });
}

// Uses that the allocator is told of during a capture, on any stream, are forgotten when the
// capture ends.
void used_by(const void* address, Stream& stream) {
  if (!World::on()) {
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  const auto* from = static_cast<const char*>(address);
  auto* own = world.holding(from, from + 1);
  if (own == nullptr) {
    return;
  }
  for (const auto& under_way : world.captures) {
    if (under_way.capture->origin.device == stream.device) {
      world.fail(std::string("thread ") + thread_name() + " tells the allocator that " + name_of(&stream) +
                     " uses " + name_of(from, own->to) + " while thread " + under_way.name +
                     " captures a graph on the device: the allocator forgets it when the capture ends",
                 from, own->to);
    }
  }
  world.clock(stream);
  own->users.insert(stream.number);
  world.note(from, own->to, "is noted as used by", &stream);
}

void locked_taken(const void* address, size_t size) {
  if (!World::on()) {
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  const auto* from = static_cast<const char*>(address);
  const auto* to = end_of(address, size);
  world.allocations[from] = {to, {}, false};
  // The host allocator has waited for every stream that used it.
  world.shadow.renew(from, to, 0, [](const Cell&, const Use&) { return false; });
  world.shadow.over(from, to, [](const char*, Cell& cell) { cell.written = true; });
  world.note(from, to, "taken", nullptr);
}

void locked_freed(const void* address, size_t size) {
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  const auto* from = static_cast<const char*>(address);
  world.allocations.erase(from);
  world.note(from, end_of(address, size), "freed", nullptr);
  release_held(world, from, end_of(address, size));
}

void capture_began(const Capture& capture) {
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  world.captures.push_back({&capture, std::this_thread::get_id(), thread_name()});
}

void capture_ended(const Capture& capture) {
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  for (size_t i = 0; i < world.captures.size(); ++i) {
    if (world.captures[i].capture == &capture) {
      world.captures.erase(world.captures.begin() + std::ptrdiff_t(i));
      return;
    }
  }
}

}  // namespace sim::checks
