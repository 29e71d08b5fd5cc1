// How much memory the warps of a kernel ask for: sectors of 32 bytes, which is what a GPU moves.
//
// Threads run one after another here. Those of a warp are taken to be together where they come to a line for the same
// time, as they are on a GPU unless they have parted in a loop.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace ptx {

class Traffic {
 public:
  // An access of `bytes` bytes, at most 32 and aligned to them, by a line of PTX.
  void add(uint32_t thread, int line, uint64_t address, uint64_t bytes) {
    const uint64_t visit = visits_[{thread, line}]++;
    num_sectors_ += sectors_.insert({thread / 32, static_cast<uint64_t>(line), visit, address / 32}).second;
    num_bytes_ += bytes;
  }
  uint64_t num_bytes() const { return num_bytes_; }  // that threads asked for
  uint64_t num_sectors() const { return num_sectors_; }

 private:
  std::map<std::pair<uint32_t, int>, uint64_t> visits_;
  std::set<std::array<uint64_t, 4>> sectors_;  // warp, line, visit, sector
  uint64_t num_bytes_ = 0, num_sectors_ = 0;
};

}  // namespace ptx
