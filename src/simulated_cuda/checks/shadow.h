// State of each byte: its last writer, and its readers since. By address, not by allocation: memory
// that is handed out again keeps its past.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace sim::checks {

// An entry that used memory; none if `at` is 0.
struct Use {
  // The number of its stream, and its place there.
  size_t stream = 0;
  uint64_t at = 0;
  const char* what = "";
  const char* thread = "";
};

// Bytes with the same past, up to `to`.
struct Cell {
  const char* to = nullptr;
  // Number of the stream that they were handed out to, and whether they were written since.
  size_t owner = 0;
  bool written = false;
  Use write;
  // At most one by stream: the latest.
  std::vector<Use> reads;
};

class Shadow {
 public:
  // Calls `see(from, cell)` for all cells of a range; none reaches beyond it.
  template <typename See>
  void over(const char* from, const char* to, See&& see) {
    split(from);
    split(to);
    auto next = cells.lower_bound(from);
    while (from < to) {
      if (next == cells.end() || next->first > from) {
        const bool last = next == cells.end() || next->first > to;
        next = cells.emplace(from, Cell{last ? to : next->first}).first;
      }
      see(next->first, next->second);
      from = next->second.to;
      ++next;
    }
  }

  // The range is handed out to a stream: its bytes count as unwritten. Past uses with `keeps(use)`
  // stay.
  template <typename Keeps>
  void renew(const char* from, const char* to, size_t owner, Keeps&& keeps) {
    bool plain = true;
    over(from, to, [&](const char*, Cell& cell) {
      prune(cell, keeps);
      cell.owner = owner;
      cell.written = false;
      plain = plain && cell.write.at == 0 && cell.reads.empty();
    });
    if (plain) {
      cells.erase(cells.lower_bound(from), cells.lower_bound(to));
      cells.emplace(from, Cell{to, owner});
    }
  }

  template <typename Keeps>
  static void prune(Cell& cell, Keeps&& keeps) {
    if (cell.write.at != 0 && !keeps(cell, cell.write)) {
      cell.write = Use();
    }
    for (size_t i = 0; i < cell.reads.size();) {
      if (keeps(cell, cell.reads[i])) {
        ++i;
      } else {
        cell.reads[i] = cell.reads.back();
        cell.reads.pop_back();
      }
    }
  }

  void clear() { cells.clear(); }

 private:
  // Splits the cell that spans `at`, if there is one.
  void split(const char* at) {
    auto after = cells.upper_bound(at);
    if (after == cells.begin()) {
      return;
    }
    auto& [from, cell] = *--after;
    if (from < at && at < cell.to) {
      Cell rest = cell;
      cell.to = at;
      cells.emplace(at, std::move(rest));
    }
  }

  std::map<const char*, Cell> cells;
};

}  // namespace sim::checks
