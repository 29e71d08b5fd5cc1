// What one edge adds to the doubt that its end is in a batch; see hotness.h. Host and device alike.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/edge_chance.h"
#include "core/rng.h"

namespace glt {

// The unit of doubts: sums of integers do not depend on their order, hence not on the number of threads.
constexpr double kDoubtUnit = 1.0 / (int64_t{1} << 40);
constexpr double kMostDoubt = 32;  // a node that is missed with probability e^-32 is never missed
// Certain nodes stay certain, so that sums cannot overflow.
constexpr auto kEnoughDoubt = static_cast<int64_t>(kMostDoubt / kDoubtUnit);
constexpr double kAlmostOne = 1 - 1e-14;

// -log(1 - p), as an integer in kDoubtUnit.
GLT_HOST_DEVICE int64_t doubt_of(double p) {
  const double capped = p < 0.0 ? 0.0 : p > kAlmostOne ? kAlmostOne : p;
  const double doubt =
      capped < 0.01 ? capped * (1 + capped * (1.0 / 2 + capped * (1.0 / 3 + capped * (1.0 / 4)))) : -::log1p(-capped);
  return static_cast<int64_t>(doubt / kDoubtUnit + 0.5);
}

// Probability that an edge is taken by a hop, and that it and a parallel edge are both taken.
struct TakenEdge {
  double once = 0, twice = 0;

  GLT_HOST_DEVICE void add(double expanded, const EdgeChance& chance, int64_t e) {
    const double one = chance(e);
    once += expanded * one;
    twice += expanded * chance.both(one);
  }
  // Of a repeated edge: that it is taken though the one before was not.
  GLT_HOST_DEVICE double of(bool repeated) const { return repeated && once < 1 ? (once - twice) / (1 - once) : once; }
};

// The edges of one node at one hop.
struct RowHotness {
  const EdgeChance* chance;  // [hop + 1]
  int64_t hop;
  const float* found;     // [hop + 1] of the node: found(v, i)
  const float* neighbor;  // [neighbour nodes, num_columns], likewise
  int64_t num_columns;
  bool replace;
  // Of the edges that may lead back; null: none.
  const int64_t* back_indptr;
  const int64_t* back_neighbors;  // [hop + 1]

  // What edge e, to node u, adds. `repeated`: an edge before it leads there too; `back`: u has an edge to the node.
  GLT_HOST_DEVICE int64_t doubt(int64_t e, int64_t u, bool repeated, bool back) const {
    return doubt_of((back && hop > 0 ? taken_without(u, e) : taken(e)).of(repeated));
  }
  GLT_HOST_DEVICE TakenEdge taken(int64_t e) const {
    TakenEdge sum;
    double before = 0;
    for (int64_t j = 0; j <= hop; ++j) {
      sum.add(found[j] - before, chance[j], e);
      before = found[j];
    }
    return sum;
  }

 private:
  // The same of edge e, v -> u, as if u had not helped to find v: follows both directions of the edge hop by hop.
  GLT_HOST_DEVICE TakenEdge taken_without(int64_t u, int64_t e) const {
    const float* found_u = neighbor + u * num_columns;
    const int64_t degree_u = back_indptr[u + 1] - back_indptr[u];
    TakenEdge to_u;
    to_u.add(found[0], chance[0], e);
    double to_v = found_u[0] * uniform_chance(back_neighbors[0], degree_u, replace);
    // Probability of not having been found otherwise than by the other.
    double missed_v = 1.0 - found[0], missed_u = 1.0 - found_u[0], before = to_u.once;
    for (int64_t j = 1; j <= hop; ++j) {
      const double still_v = lower(missed_v, (1.0 - found[j]) / (1.0 - lower(to_v, kAlmostOne)));
      to_u.add(missed_v - still_v, chance[j], e);
      if (j == hop) break;
      const double still_u = lower(missed_u, (1.0 - found_u[j]) / (1.0 - lower(before, kAlmostOne)));
      to_v += (missed_u - still_u) * uniform_chance(back_neighbors[j], degree_u, replace);
      missed_v = still_v;
      missed_u = still_u;
      before = to_u.once;
    }
    return to_u;
  }
  GLT_HOST_DEVICE static double lower(double a, double b) { return b < a ? b : a; }
};

// Bit e of a bit per edge; null: none is set.
GLT_HOST_DEVICE bool edge_bit(const uint64_t* bits, int64_t e) {
  return bits && (bits[e >> 6] >> (e & 63) & 1);
}

}  // namespace glt
