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

  // Of edges with these times [degree], at least one of them, which never fall and are at most `seed_time`.
  GLT_HOST_DEVICE AgeSums(const int64_t* time, int64_t degree, int64_t seed_time, int64_t half_life) {
    // From the latest edge to the earliest; steps without an edge are passed over.
    for (int64_t end = degree; end > 0;) {
      const int step = step_of(age_of(time[end - 1], seed_time), half_life);
      const uint64_t older = static_cast<uint64_t>(half_life) * static_cast<uint64_t>(step + 1);
      const bool is_last = step == kSteps - 1 || bounded(half_life, step + 1) > 0;  // no age is 2^64
      int64_t low = 0;
      for (int64_t high = is_last ? 0 : end - 1; low < high;) {
        const int64_t middle = (low + high) / 2;
        if (age_of(time[middle], seed_time) >= older)
          low = middle + 1;
        else
          high = middle;
      }
      const int at = kSteps - ++size_;
      first_[at] = low;
      shift_[at] = static_cast<int8_t>(kSteps - 1 - step);
      total_ += static_cast<uint64_t>(end - low) << shift_[at];
      end = low;
    }
    uint64_t sum = 0;
    for (int at = kSteps - size_; at < kSteps; ++at) {
      before_[at] = sum;
      sum += static_cast<uint64_t>((at + 1 < kSteps ? first_[at + 1] : degree) - first_[at]) << shift_[at];
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
  GLT_HOST_DEVICE static uint64_t age_of(int64_t time, int64_t seed_time) {
    return static_cast<uint64_t>(seed_time) - static_cast<uint64_t>(time);
  }
  GLT_HOST_DEVICE static int step_of(uint64_t age, int64_t half_life) {
    const uint64_t step = age / static_cast<uint64_t>(half_life);
    return step < kSteps ? static_cast<int>(step) : kSteps - 1;
  }
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

}  // namespace glt
