// Ordering checks at submission, which find a missing wait whatever the timing.
#include "locked.h"
#include "world.h"

#include "../address_space.h"

#include <cstring>

namespace sim::checks {

namespace {

const char* verb(bool write) { return write ? "writes" : "reads"; }

[[noreturn]] void race(World& world, const Stream& stream, const Entry& entry, const Access& access,
                       const Use& other, bool written) {
  world.fail(std::string(entry.what) + " " + verb(access.write) + " " + name_of(access.from, access.to) + " on " +
                 name_of(&stream) + " (thread " + thread_name() + "), which " + other.what + " " + verb(written) +
                 " on " + name_of(world.streams[other.stream]) + " (thread " + other.thread +
                 "), and neither waits for the other",
             access.from, access.to);
}

void read(Cell& cell, const Use& use) {
  for (auto& own : cell.reads) {
    if (own.stream == use.stream) {
      own = use;
      return;
    }
  }
  cell.reads.push_back(use);
}

void check_alive(World& world, const Stream& stream, const Entry& entry, Access& access) {
  auto* own = world.holding(access.from, access.to);
  if (own != nullptr) {
    access.of_graph = access.of_graph || (own->of_graph && stream.capture);
    return;
  }
  world.fail(std::string(entry.what) + " " + verb(access.write) + " " + name_of(access.from, access.to) + " on " +
                 name_of(&stream) + ", which is not in any memory that is handed out",
             access.from, access.to);
}

// Whether the entry only moves bytes (so named in operators/copies.cpp) to memory that the checks
// track: unwritten bytes may be copied, and count as unwritten at their destination.
bool only_moves(const Entry& entry) {
  return strncmp(entry.what, "copy_ ", 6) == 0 && !entry.accesses.empty() && entry.accesses.back().write;
}

// `written`: whether everything that the entry has read so far was written; if so, its results are,
// too.
void check_access(World& world, const Stream& stream, const Entry& entry, const Access& access, const Use& use,
                  bool& written) {
  world.shadow.over(access.from, access.to, [&](const char* from, Cell& cell) {
    if (cell.write.at != 0 && !world.is_before(cell.write, stream)) {
      race(world, stream, entry, {std::max(from, access.from), cell.to, access.write}, cell.write, true);
    }
    if (!access.write) {
      const bool unknown = !cell.written && access.exact;
      written = written && !unknown;
      if (unknown && !access.moves) {
        world.fail(std::string(entry.what) + " reads " + name_of(from, cell.to) + " on " + name_of(&stream) +
                       ", which nobody has written since the memory was handed out",
                   from, cell.to);
      }
      read(cell, use);
      return;
    }
    for (const auto& other : cell.reads) {
      if (!world.is_before(other, stream)) {
        race(world, stream, entry, {from, cell.to, true}, other, false);
      }
    }
    cell.write = use;
    cell.reads.clear();
    cell.written = written;
  });
}

// Adds the entry to a graph. It is checked whenever the graph runs.
void check_captured(World& world, Stream& stream, Entry& entry) {
  for (auto& access : entry.accesses) {
    check_alive(world, stream, entry, access);
    access.moves = only_moves(entry);
  }
  if (!entry.accesses.empty()) {
    entry.accesses.front().begins = true;
  }
}

void hand_out_again(World& world, const Access& access) {
  world.shadow.over(access.from, access.to, [](const char*, Cell& cell) { cell.written = false; });
}

void check_thread(World& world, Stream& stream, const char* what) {
  auto* under_way = world.capturing(stream.capture.get());
  if (under_way != nullptr && under_way->thread != std::this_thread::get_id()) {
    world.fail(std::string("thread ") + thread_name() + " puts " + what + " into " + name_of(&stream) +
               ", which thread " + under_way->name + " is capturing: it becomes a part of that graph");
  }
}

}  // namespace

void submitted(Stream& stream, Entry& entry) {
  if (!World::on()) {
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  if (stream.capture) {
    check_thread(world, stream, entry.what);
    check_captured(world, stream, entry);
    return;
  }
  const Use use{stream.number, ++world.clock(stream)[stream.number], entry.what, thread_name()};
  bool written = true;
  const bool moves = only_moves(entry);
  for (auto& access : entry.accesses) {
    if (access.fresh) {
      hand_out_again(world, access);
      continue;
    }
    if (!access.of_graph) {
      check_alive(world, stream, entry, access);
    }
    access.moves = access.moves || moves;
    written = written || access.begins;
    check_access(world, stream, entry, access, use, written);
    if (is_page_locked(access.from)) {
      hold(world, access, use);
    }
  }
}

void captured(Stream& stream, const char* what) {
  if (!World::on()) {
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  check_thread(world, stream, what);
}

void recorded(Stream& stream, Point& point) {
  if (!World::on()) {
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  point.clock = world.clock(stream);
}

void waited(Stream& stream, Point& point) {
  if (!World::on()) {
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  join(world.clock(stream), point.clock);
}

void host_waited(Point& point) {
  if (!World::on()) {
    return;
  }
  auto& world = World::get();
  std::lock_guard<std::mutex> lock(world.mutex);
  join(world.host, point.clock);
  release_held(world);
}

}  // namespace sim::checks
