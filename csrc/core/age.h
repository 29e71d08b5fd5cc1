// Weights of edges by their age: an edge weighs half as much with each half-life that it is older than the seed.
//
// Decay in steps keeps weights integers, so that every machine decides alike: an edge that is n half-lives old, rounded
// down, weighs 2^(31 - n), or 1 where n is above 31. Edges of a row are sorted by time, so those of one weight are
// neighbours, and the sums of a row follow from where these steps are.
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace glt {

// The sums of a row: what StoredSums is where weights are stored.
struct AgeSums {
  static constexpr int kSteps = 32;

  // Takes edges [begin, end), all that are `step` half-lives old; from the latest step to the earliest.
  GLT_HOST_DEVICE void add(int64_t begin, int64_t end, int step) {
    const int at = kSteps - ++size_;
    first_[at] = begin;
    shift_[at] = static_cast<int8_t>(kSteps - 1 - step);
    before_[at] = static_cast<uint64_t>(end - begin) << shift_[at];  // its own weight, until all are there
    total_ += before_[at];
  }
  // When all edges are there.
  GLT_HOST_DEVICE void finish() {
    uint64_t sum = 0;
    for (int at = kSteps - size_; at < kSteps; ++at) {
      const uint64_t weight = before_[at];
      before_[at] = sum;
      sum += weight;
    }
  }

  GLT_HOST_DEVICE uint64_t total() const { return total_; }
  GLT_HOST_DEVICE uint64_t weight_of(int64_t edge) const { return uint64_t{1} << shift_[step_at(edge)]; }
  GLT_HOST_DEVICE uint64_t before(int64_t edge) const {
    const int at = step_at(edge);
    return before_[at] + (static_cast<uint64_t>(edge - first_[at]) << shift_[at]);
  }
  GLT_HOST_DEVICE void narrow(uint64_t target, int64_t& low, int64_t& high) const {
    int at = kSteps - 1;
    while (before_[at] > target) --at;
    low = high = first_[at] + static_cast<int64_t>((target - before_[at]) >> shift_[at]);
  }
  GLT_HOST_DEVICE int64_t find(uint64_t, int64_t low, int64_t) const { return low; }

 private:
  // The step of an edge; most are asked for of the latest.
  GLT_HOST_DEVICE int step_at(int64_t edge) const {
    int at = kSteps - 1;
    while (first_[at] > edge) --at;
    return at;
  }

  // Of the steps that have edges, the earliest first, the last one at kSteps - 1.
  int64_t first_[kSteps];    // edge
  uint64_t before_[kSteps];  // sum of all weights before
  int8_t shift_[kSteps];
  int size_ = 0;
  uint64_t total_ = 0;
};

// Finds where the steps of a row are, one look at its times after the other: the host lets many rows take turns, so
// that one waits for memory while others compute.
struct AgeSearch {
  const int64_t* time;  // [degree], of eligible edges and excluded ones; never falling, at most `seed_time`
  int64_t seed_time, half_life;
  int64_t end;  // edges that have no step yet are [0, end)
  AgeSums* sums;
  int64_t low = 0, high = -1;  // where the present step begins; high < 0: it is not known which
  int step = 0;
  uint64_t older = 0;  // the age from which edges are of a later step

  GLT_HOST_DEVICE AgeSearch(const int64_t* time, int64_t degree, int64_t seed_time, int64_t half_life, AgeSums* sums)
      : time(time), seed_time(seed_time), half_life(half_life), end(degree), sums(sums) {}

  // What it looks at next.
  GLT_HOST_DEVICE const int64_t* next() const { return time + (high < 0 ? end - 1 : (low + high) / 2); }
  // Looks at it; false when all edges have their steps.
  GLT_HOST_DEVICE bool advance() {
    const uint64_t age = static_cast<uint64_t>(seed_time) - static_cast<uint64_t>(*next());
    if (high < 0) {
      const uint64_t steps = age / static_cast<uint64_t>(half_life);
      step = steps < AgeSums::kSteps ? static_cast<int>(steps) : AgeSums::kSteps - 1;
      const auto after = static_cast<uint64_t>(step + 1);
      older = static_cast<uint64_t>(half_life) * after;
      const bool is_last = step == AgeSums::kSteps - 1 || bounded(half_life, after) > 0;  // no age is 2^64
      low = 0;
      high = is_last ? 0 : end - 1;
    } else if (age >= older) {
      low = (low + high) / 2 + 1;
    } else {
      high = (low + high) / 2;
    }
    if (low < high) return true;
    sums->add(low, end, step);
    end = low;
    high = -1;
    if (end > 0) return true;
    sums->finish();
    return false;
  }
};

}  // namespace glt
