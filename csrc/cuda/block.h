// What kernel bodies are written against: a block of threads, tiles of work, and prefix sums over them. Host and device
// run the same bodies.
//
// each(step) of a block runs `step` for all its threads and waits for them. A GPU runs the threads side by side. The
// host runs them one after another, in an order of its choice, since no result may depend on it.
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace glt::cuda {

// The size of a block: one for all kernels, so that host and device cut work alike.
constexpr int kThreads = 256;

// Places for what many threads write in order: items are cut into tiles, one for each block, and every thread learns
// how much comes before what its own items give.
//
// Two launches: the first writes the sum of each tile, the second adds up the sums of the tiles before its own. Tiles
// are few (kMostTiles for each array), so that adding up costs less than a third launch, and no block ever waits for
// another, which is what makes the sum independent of the order in which blocks run.
constexpr int kMostTiles = 1024;

// Tiles for up to `bound` items, `per_thread` of them to a thread: a power of two, since GPUs have no division.
inline int tiles_for(int64_t bound, int64_t per_thread) {
  int tiles = 1;
  while (tiles < kMostTiles && int64_t{tiles} * kThreads * per_thread < bound) tiles *= 2;
  return tiles;
}

GLT_HOST_DEVICE int log2_of(uint32_t power) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(power)) - 1;
#else
  return __builtin_ctz(power);
#endif
}

// The items of tile `tile` of `tiles`: as many to a thread as it takes, so the last tiles may have none.
struct Tile {
  int64_t begin, end, per_thread;

  GLT_HOST_DEVICE Tile(int64_t n, int tile, int tiles) {
    const int64_t threads = int64_t{kThreads} * tiles;
    per_thread = (n + threads - 1) >> log2_of(static_cast<uint32_t>(threads));
    begin = lower(n, tile * kThreads * per_thread);
    end = lower(n, begin + kThreads * per_thread);
  }
  GLT_HOST_DEVICE int64_t first(int thread) const { return lower(end, begin + thread * per_thread); }
  GLT_HOST_DEVICE int64_t last(int thread) const { return first(thread + 1); }
  GLT_HOST_DEVICE bool empty() const { return begin == end; }
  // Those from item `from` on, one to a thread.
  GLT_HOST_DEVICE Tile one_each(int64_t from) const {
    Tile some = *this;
    some.begin = from;
    some.end = lower(end, from + kThreads);
    some.per_thread = 1;
    return some;
  }

 private:
  GLT_HOST_DEVICE static int64_t lower(int64_t a, int64_t b) { return a < b ? a : b; }
};

// Slots of a block that are dealt out to rows, `width` to each, and told apart without a division.
struct RowSlots {
  static constexpr uint32_t kMost = 2048, kWidest = 1024;
  uint32_t width = 1, inverse = kMost * kWidest;  // inverse: 2^21 / width, rounded up
  int num_parts = 1, num_rows = kThreads;  // blocks that share the rows of kThreads threads, and how many each takes

  static RowSlots of(int64_t width) {
    RowSlots slots;
    slots.width = static_cast<uint32_t>(width);
    slots.inverse = (kMost * kWidest + slots.width - 1) / slots.width;
    const int fitting = static_cast<int>(kMost / slots.width);
    slots.num_parts = (kThreads + fitting - 1) / fitting;
    slots.num_rows = (kThreads + slots.num_parts - 1) / slots.num_parts;
    return slots;
  }
  // Exact: rounding up adds less than slot / 2^21 of a row, which is less than 1 / width.
  GLT_HOST_DEVICE uint32_t row_of(uint32_t slot) const { return slot * inverse / (kMost * kWidest); }
};

// How many items the threads of a block add in each round, a round being one step of each(). Of three counters one
// counts, one is made ready for the next round, and one may still be read by threads that are late.
class RoundCounter {
 public:
  // One thread calls it in the step before round 0.
  GLT_HOST_DEVICE void start() { count_[0] = 0; }
  // One thread calls it in each round.
  GLT_HOST_DEVICE void prepare_next(uint32_t round) { count_[(round + 1) % 3] = 0; }
  // Returns how many there were before.
  template <typename Block>
  GLT_HOST_DEVICE uint32_t add(const Block& block, uint32_t round) {
    return block.atomic_add(&count_[round % 3], 1u);
  }
  // After the round, before the end of the next.
  GLT_HOST_DEVICE uint32_t count(uint32_t round) const { return count_[round % 3]; }

 private:
  uint32_t count_[3];
};

// Shared memory of a block that does not scan.
struct NoShared {};

// Of one that does.
struct ScanShared {
  int64_t own[2][kThreads];     // what the items of a thread give
  int64_t before[2][kThreads];  // of the tiles before

  // After scan_tile.
  GLT_HOST_DEVICE int64_t tile_sum() const { return own[0][kThreads - 1]; }
  GLT_HOST_DEVICE int64_t tile_place() const { return before[0][kThreads - 1]; }
  GLT_HOST_DEVICE int64_t place(int thread) const { return tile_place() + (thread ? own[0][thread - 1] : 0); }
};

// Sums up give(i) over a range of items.
template <typename Give>
struct SumOf {
  Give give;
  GLT_HOST_DEVICE int64_t operator()(int64_t first, int64_t last) const {
    int64_t sum = 0;
    for (int64_t i = first; i < last; ++i) sum += give(i);
    return sum;
  }
};
template <typename Give>
GLT_HOST_DEVICE SumOf<Give> sum_of(const Give& give) {
  return {give};
}

// Fills `shared`: give(first, last) is what these items of `tile` give, sums[0, tiles_before) what the tiles before do.
template <typename Block, typename Give>
GLT_HOST_DEVICE void scan_tile(const Block& block, ScanShared& shared, const Tile& tile, const int64_t* sums,
                               int64_t tiles_before, const Give& give) {
  block.each([&](int thread) {
    int64_t before = 0;
    for (int64_t t = thread; t < tiles_before; t += kThreads) before += sums[t];
    shared.own[0][thread] = give(tile.first(thread), tile.last(thread));
    shared.before[0][thread] = before;
  });
  // Hillis & Steele, CACM 29(12), 1986: eight steps, which end in the half of the arrays that they began in.
  static_assert(kThreads == 256);
  for (int step = 1, from = 0; step < kThreads; step *= 2, from ^= 1)
    block.each([&](int thread) {
      const int other = thread >= step ? thread - step : -1;
      shared.own[from ^ 1][thread] = shared.own[from][thread] + (other < 0 ? 0 : shared.own[from][other]);
      shared.before[from ^ 1][thread] = shared.before[from][thread] + (other < 0 ? 0 : shared.before[from][other]);
    });
}

}  // namespace glt::cuda
