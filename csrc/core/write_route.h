// Which way long pieces are written: through the page cache or past it, whichever was faster of late.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace glt {

// Past it is faster where memory that was not used yet is slow to come by, as in virtual machines that get theirs when
// they touch it, and where so much is dirty that writers are slowed down; and it leaves what others read in the cache.
// Through it is faster where the disk is slower than that. No rule about machines tells which: pieces are timed. Any
// number of threads; what is written does not depend on it.
class WriteRoute {
 public:
  enum Way { kCached, kDirect, kNumWays };

  Way choose() {
    const int64_t turn = turn_.fetch_add(1, std::memory_order_relaxed);
    if (turn < kTrials) return turn % 2 ? kDirect : kCached;
    const Way best = pace(kDirect) < pace(kCached) ? kDirect : kCached;
    return turn % kRetrial ? best : best == kDirect ? kCached : kDirect;
  }

  void took(Way way, int64_t num_bytes, std::chrono::duration<double> time) {
    const double now = time.count() / static_cast<double>(num_bytes), before = pace(way);
    pace_[way].store(before ? before + (now - before) / kMemory : now, std::memory_order_relaxed);
  }

  // It cannot be had here: it is tried again at times, since there are several disks.
  void refused(Way way) { pace_[way].store(1.0, std::memory_order_relaxed); }

 private:
  static constexpr int64_t kTrials = 8, kRetrial = 32;
  static constexpr double kMemory = 4;  // pieces

  double pace(Way way) const { return pace_[way].load(std::memory_order_relaxed); }

  std::atomic<int64_t> turn_{0};
  std::atomic<double> pace_[kNumWays] = {};  // seconds per byte; 0: not known
};

}  // namespace glt
