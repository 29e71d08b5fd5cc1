// Edge weights in the form that draws need: integers, so that every machine decides alike, as prefix sums of each row
// with cut points into them.
//
// A draw is a number below the sum of a row; the edge is found by looking it up among the prefix sums. Cut points
// (Chen & Asau, AIIE Transactions 6(2), 1974) say where to start: the axis of sums is cut into equal ranges, about one
// per eight edges, so that a search takes constant time on average and logarithmic time at worst.
#pragma once

#include <bit>
#include <cstdint>
#include <variant>

#include "core/rng.h"

namespace glt {

inline int64_t weight_guide_size(int64_t num_rows, int64_t num_edges) {
  return (num_edges >> 3) + num_rows;
}

GLT_HOST_DEVICE int bit_width(uint64_t value) {
#if defined(__CUDA_ARCH__)
  return 64 - __clzll(static_cast<long long>(value));
#else
  return std::bit_width(value);
#endif
}

// The cut points of one row: guide[j] is the first edge whose sum exceeds j << shift.
//
// Both arrays come from files whose contents nobody need have checked. What they say may lead to another edge of the
// row, never out of it.
struct WeightGuide {
  int64_t first;  // of the row, in weight_guide
  uint64_t size;
  int shift;

  // `row` has edges [begin, end), which weigh `total` together.
  GLT_HOST_DEVICE WeightGuide(int64_t row, int64_t begin, int64_t end, uint64_t total)
      : first((begin >> 3) + row), size(static_cast<uint64_t>((end >> 3) - (begin >> 3) + 1)), shift(0) {
    if (total <= size) return;
    // The smallest shift with (total - 1) >> shift < size.
    shift = bit_width(total - 1) - bit_width(size);
    shift += (total - 1) >> shift >= size;
    if (shift > 63) shift = 63;  // no sum of build_weights is that large
  }
};

using Weights = std::variant<const float*, const double*>;

// Weights of one row as integers: scaled by one power of two, such that their sum stays below 2^62, and cut; a positive
// one becomes at least 1.
class WeightScale {
 public:
  WeightScale(double largest, int64_t degree);
  uint64_t operator()(double weight) const;

 private:
  int exponent_;
};

// Throws std::invalid_argument, naming `name`[at], unless `weight` is finite and at least 0.
void check_weight(double weight, const char* name, int64_t at);

// build_weights for one row of edges [begin, end); the arrays start at its first elements.
void build_weight_row(int64_t row, int64_t begin, int64_t end, Weights weight, uint64_t* sum, uint32_t* guide,
                      const char* name);

// Fills weight_sum [num_edges] and weight_guide [weight_guide_size(num_rows, num_edges)] from weights in row order.
// Throws std::invalid_argument naming the first weight that is negative or not finite as `name`[its position], or a row
// of more than 2^32 - 1 edges.
void build_weights(const int64_t* indptr, int64_t num_rows, Weights weight, uint64_t* weight_sum,
                   uint32_t* weight_guide, const char* name);

// Throws std::invalid_argument naming the first element that build_weights cannot have written.
void validate_weights(const int64_t* indptr, int64_t num_rows, const uint64_t* weight_sum,
                      const uint32_t* weight_guide);

// A range of the axis of sums that no draw may hit any more.
struct UsedRange {
  uint64_t begin, weight;
};

// Rows this short are searched without cut points: their sums are in one or two cache lines.
constexpr int64_t kShortRow = 16;

// The sums of a row whose edges have weights. What draws ask of sums, age.h answers too.
struct StoredSums {
  const uint64_t* sum;  // [degree]
  int64_t degree;
  const uint32_t* cut = nullptr;  // [num_cuts]; null: a short row
  uint64_t num_cuts = 0;
  int shift = 0;

  // Of row number `row`, which has edges [begin, begin + degree) and at least one.
  GLT_HOST_DEVICE StoredSums(const uint64_t* weight_sum, const uint32_t* weight_guide, int64_t row, int64_t begin,
                             int64_t degree)
      : sum(weight_sum + begin), degree(degree) {
    if (degree <= kShortRow) return;
    const WeightGuide guide(row, begin, begin + degree, total());
    cut = weight_guide + guide.first;
    num_cuts = guide.size;
    shift = guide.shift;
  }
  GLT_HOST_DEVICE uint64_t total() const { return sum[degree - 1]; }
  GLT_HOST_DEVICE uint64_t before(int64_t edge) const { return edge > 0 ? sum[edge - 1] : 0; }
  GLT_HOST_DEVICE uint64_t weight_of(int64_t edge) const { return sum[edge] - before(edge); }

  // Which cut point the search for a number starts from.
  GLT_HOST_DEVICE uint64_t piece(uint64_t target) const {
    const uint64_t at = target >> shift;
    return at < num_cuts ? at : num_cuts - 1;
  }
  // Looks up between which edges to search for a number.
  GLT_HOST_DEVICE void narrow(uint64_t target, int64_t& low, int64_t& high) const {
    low = 0;
    high = degree - 1;
    if (!cut) return;
    const uint64_t at = piece(target);
    low = within(cut[at]);
    if (at + 1 < num_cuts) high = within(cut[at + 1]);
  }
  // The first edge of [low, high] whose sum exceeds the number; the last one's does.
  GLT_HOST_DEVICE int64_t find(uint64_t target, int64_t low, int64_t high) const {
    const uint64_t* first = sum + low;
    for (int64_t n = high - low; n > 0;) {
      const int64_t half = (n + 1) / 2;
      first += half & -static_cast<int64_t>(first[half - 1] <= target);  // a branch would be wrong half the time
      n -= half;
    }
    return first - sum;
  }

 private:
  GLT_HOST_DEVICE int64_t within(int64_t edge) const { return edge < degree ? edge : degree - 1; }
};

// One row in the middle of its draws by weight: what each draw decides, on host and device.
//
// Draw i is a number below the weight that is left; the edge is the one that it falls on when the weights that are left
// stand side by side in row order. A draw goes by three steps, between which the host loads what the next one reads.
template <typename Sums, typename Draws = NodeDraws>
struct WeightedRow {
  int64_t begin, degree, count;
  int64_t* position;  // [count], picks
  Sums sums;
  Draws draws;
  int64_t done = 0;                // picks
  uint64_t left = sums.total();    // weight that no pick has taken
  int64_t used = 0, used_end = 0;  // the row's part of the list of used ranges, ascending
  // The present draw: on the axis of sums, its place in the list, and the edges [low, high] that it may fall on.
  uint64_t target = 0;
  int64_t slot = 0, low = 0, high = 0;

  GLT_HOST_DEVICE bool is_done() const { return done == count || left == 0; }

  // Draws a number and moves it behind the ranges that are used.
  GLT_HOST_DEVICE void aim(const UsedRange* ranges) {
    target = bounded(draws(static_cast<uint32_t>(done)), left);
    slot = used;
#if defined(__CUDA_ARCH__)
    for (; slot < used_end && ranges[slot].begin <= target; ++slot) target += ranges[slot].weight;
#else
    // To the end of the list, though none lies before the number once one does not: where it ends is unpredictable.
    for (int64_t at = used; at < used_end; ++at) {
      const bool before = ranges[at].begin <= target;
      target += ranges[at].weight & -static_cast<uint64_t>(before);
      slot += before;
    }
#endif
  }
  // The same where some edges, at `excluded` [num_excluded], ascending, are used before the first draw and not listed.
  GLT_HOST_DEVICE void aim(const UsedRange* ranges, const int64_t* excluded, int64_t num_excluded) {
    target = bounded(draws(static_cast<uint32_t>(done)), left);
    slot = used;
    for (int64_t s = 0;;) {
      const bool is_edge = s < num_excluded;
      const uint64_t first = is_edge ? sums.before(excluded[s] - begin) : 0;
      const bool is_listed = slot < used_end && (!is_edge || ranges[slot].begin < first);
      if (!is_listed && !is_edge) return;
      if ((is_listed ? ranges[slot].begin : first) > target) return;
      target += is_listed ? ranges[slot++].weight : sums.weight_of(excluded[s] - begin);
      s += !is_listed;
    }
  }
  GLT_HOST_DEVICE void narrow() { sums.narrow(target, low, high); }
  // Takes the edge that the number falls on; `ranges` has room for it behind used_end.
  GLT_HOST_DEVICE void land(bool replace, UsedRange* ranges) {
    const int64_t edge = sums.find(target, low, high);
    position[done++] = begin + edge;
    if (replace) return;
    const uint64_t weight = sums.weight_of(edge);
#if defined(__CUDA_ARCH__)
    for (int64_t at = used_end; at > slot; --at) ranges[at] = ranges[at - 1];
#else
    for (int64_t at = used_end; at > used; --at) ranges[at] = ranges[at - (at > slot)];
#endif
    ranges[slot] = {sums.before(edge), weight};
    ++used_end;
    left -= weight;
  }
};

}  // namespace glt
