// One row in the middle of its draws by weight: what each draw decides, on host and device.
//
// Draw i is a number below the weight that is left; the edge is the one that it falls on when the weights that are left
// stand side by side in row order. A draw goes by three steps, between which the host loads what the next one reads.
#pragma once

#include <cstdint>

#include "core/pick_rules.h"
#include "core/rng.h"
#include "core/weights.h"

namespace glt {

// A piece of the axis of sums that no draw may hit any more.
struct Taken {
  uint64_t begin, weight;
};

// Rows this short are searched without cut points: their sums are in one or two cache lines.
constexpr int64_t kShortRow = 16;

struct WeightedRow {
  int64_t begin, degree, count;
  int64_t* position;    // [count], picks
  const uint64_t* sum;  // [degree]
  NodeDraws draws;
  const uint32_t* cut = nullptr;  // [num_cuts]; null: a short row
  uint64_t num_cuts = 0;
  int shift = 0;
  int64_t done = 0;                  // picks
  uint64_t left = 0;                 // weight that no pick has taken
  int64_t taken = 0, taken_end = 0;  // the row's part of the list of pieces, ascending
  // The present draw: on the axis of sums, its place in the list, and the edges [low, high] that it may fall on.
  uint64_t target = 0;
  int64_t slot = 0, low = 0, high = 0;

  // Before the first draw of row number `row`, which has an edge.
  GLT_HOST_DEVICE void start(int64_t row, const uint32_t* weight_guide) {
    left = sum[degree - 1];
    if (degree <= kShortRow) return;
    const WeightGuide guide(row, begin, begin + degree, left);
    cut = weight_guide + guide.first;
    num_cuts = guide.size;
    shift = guide.shift;
  }
  GLT_HOST_DEVICE uint64_t weight_of(int64_t edge) const { return sum[edge] - (edge > 0 ? sum[edge - 1] : 0); }
  GLT_HOST_DEVICE bool is_done() const { return done == count || left == 0; }

  // Draws a number and moves it behind the pieces that are taken.
  GLT_HOST_DEVICE void aim(const Taken* pieces) {
    target = bounded(draws(static_cast<uint32_t>(done)), left);
    slot = taken;
    for (; slot < taken_end && pieces[slot].begin <= target; ++slot) target += pieces[slot].weight;
  }
  // The same where some edges, at `excluded` [num_excluded], ascending, are taken before the first draw and not listed.
  GLT_HOST_DEVICE void aim(const Taken* pieces, const int64_t* excluded, int64_t num_excluded) {
    target = bounded(draws(static_cast<uint32_t>(done)), left);
    slot = taken;
    for (int64_t s = 0;;) {
      const int64_t edge = s < num_excluded ? excluded[s] - begin : degree;
      const uint64_t weight = s < num_excluded ? weight_of(edge) : 0;
      const bool is_listed = slot < taken_end && (s == num_excluded || pieces[slot].begin < sum[edge] - weight);
      if (!is_listed && s == num_excluded) return;
      if ((is_listed ? pieces[slot].begin : sum[edge] - weight) > target) return;
      target += is_listed ? pieces[slot++].weight : weight;
      s += !is_listed;
    }
  }
  // Looks up between which edges to search.
  GLT_HOST_DEVICE void narrow() {
    low = 0;
    high = degree - 1;
    if (!cut) return;
    const uint64_t piece = target >> shift;
    low = cut[piece];
    if (piece + 1 < num_cuts) high = cut[piece + 1];
  }
  // Takes the edge that the number falls on; `pieces` has room for it behind taken_end.
  GLT_HOST_DEVICE void land(bool replace, Taken* pieces) {
    const int64_t edge = find_edge();
    position[done++] = begin + edge;
    if (replace) return;
    const uint64_t weight = weight_of(edge);
    for (int64_t at = taken_end; at > slot; --at) pieces[at] = pieces[at - 1];
    pieces[slot] = {sum[edge] - weight, weight};
    ++taken_end;
    left -= weight;
  }

 private:
  // The first edge of [low, high] whose sum exceeds the number; the last one's does.
  GLT_HOST_DEVICE int64_t find_edge() const {
    const uint64_t* first = sum + low;
    for (int64_t n = high - low; n > 0;) {
      const int64_t half = (n + 1) / 2;
      first += first[half - 1] <= target ? half : 0;
      n -= half;
    }
    return first - sum;
  }
};

}  // namespace glt
