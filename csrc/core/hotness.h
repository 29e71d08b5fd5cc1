// How likely nodes are to be in a batch, without sampling one: probabilities passed along edges, hop after hop.
//
// Notation: found(v, i) is the probability that node v has been discovered by hop i. A node is expanded at the hop that
// discovers it, once, so that the probability that it ever takes the edge to u is a sum over hops:
//   taken(v -> u) = sum over hops j of (found(v, j) - found(v, j - 1)) * chance that an expansion at hop j picks the
//   edge
// and, if the edges to u were taken independently of each other,
//   1 - found(u, i + 1) = (1 - found(u, 0)) * product over v of (1 - taken(v -> u)).
//
// They are not where v owes its discovery to u: a path that turns back discovers nothing. So, where an edge u -> v
// exists too, taken(v -> u) is computed as if u were not there (a cavity, as in belief propagation): u's factor is
// divided out of found(v). Parallel edges are taken at the same time or not at all, as far as they are likely; a
// repeated one counts as what it adds to the first. Longer cycles are neglected, which overestimates what many of them
// lead to.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/csr.h"
#include "core/rng.h"

namespace glt {

// The chance of each of `degree` edges where all weigh the same; k < 0: all are taken.
GLT_HOST_DEVICE double uniform_chance(int64_t k, int64_t degree, bool replace) {
  if (k < 0 || (!replace && k >= degree)) return 1.0;
  if (!replace || k == 0) return static_cast<double>(k) / static_cast<double>(degree);
  return -::expm1(static_cast<double>(k) * ::log1p(-1.0 / static_cast<double>(degree)));
}

struct TwoSums {
  double first, second;
};

// The chance of each edge of one row, drawn by weight or uniformly.
class EdgeChance {
 public:
  EdgeChance() = default;

  // `node` has edges [begin, end).
  EdgeChance(const CsrView& csr, int64_t begin, int64_t end, int64_t k, bool weighted, bool replace);

  // The same in two steps, for callers that add up in other ways: `weight_sum` of the whole graph, null for uniform
  // draws.
  GLT_HOST_DEVICE void begin(const uint64_t* weight_sum, int64_t begin, int64_t end, int64_t k, bool replace) {
    weight_sum_ = nullptr;
    begin_ = begin;
    pair_ = 1;
    law_ = Law::kCertain;
    rate_ = power_ = rest_ = total_ = 0;
    const int64_t degree = end - begin;
    even_ = uniform_chance(k, degree, replace);
    if (k > 0 && degree > 1)  // exact for equal weights without replacement, k (k - 1) / (degree (degree - 1)) pairs
      pair_ = static_cast<double>(k - 1) / static_cast<double>(k) *
              (replace ? 1.0 : static_cast<double>(degree) / static_cast<double>(degree - 1));
    if (!weight_sum || k < 0 || k == 0 || degree == 0 || (!replace && k >= degree)) return;
    const uint64_t total = weight_sum[end - 1];
    if (total == 0) return;  // uniform among edges that all weigh nothing
    weight_sum_ = weight_sum;
    total_ = static_cast<double>(total);
    rate_ = 1 / total_;
    if (!replace) return;
    even_ = 0;
    law_ = Law::kPower;
    power_ = static_cast<double>(k);
  }
  // sum(of) adds up of(e), which is TwoSums, over all edges of the row.
  template <typename Sum>
  GLT_HOST_DEVICE void finish(int64_t degree, int64_t k, bool replace, const Sum& sum) {
    if (!weight_sum_ || replace) return;
    const auto num_positive = static_cast<int64_t>(
        sum([this](int64_t e) { return TwoSums{weight(e) > 0 ? 1.0 : 0.0, 0}; }).first);  // exact below 2^53
    even_ = k > num_positive ? static_cast<double>(k - num_positive) / static_cast<double>(degree - num_positive) : 0;
    if (k >= num_positive) return;  // certain
    if (k == 1) {
      law_ = Law::kShare;
      return;
    }
    if (k == 2) {
      law_ = Law::kPair;
      rest_ = sum([this](int64_t e) { return TwoSums{weight(e) / (total_ - weight(e)), 0}; }).first;
      return;
    }
    // Successive draws take the k edges whose exponential clocks, of rates w, ring first (Efraimidis & Spirakis, 2006).
    // With many edges the k-th rings at about a fixed time, which is the one by which k rings are expected.
    law_ = Law::kExponential;
    rate_ = static_cast<double>(k) / total_;
    for (int step = 0; step < 50; ++step) {  // Newton on a concave rising function, from its left: never overshoots
      const TwoSums rung = sum([this](int64_t e) {  // and how fast it rises
        const double w = weight(e), silent = ::exp(-w * rate_);
        return TwoSums{1 - silent, w * silent};
      });
      const double missing = static_cast<double>(k) - rung.first;
      if (missing < 1e-6 * static_cast<double>(k) || rung.second <= 0) break;
      rate_ += missing / rung.second;
    }
  }

  GLT_HOST_DEVICE double operator()(int64_t edge) const {
    if (!weight_sum_) return even_;
    const double w = weight(edge);
    if (w == 0) return even_;  // these come last
    switch (law_) {
      case Law::kCertain:
        return 1.0;
      case Law::kPower:
        return -::expm1(power_ * ::log1p(-w * rate_));
      case Law::kShare:
        return w * rate_;
      case Law::kPair: {  // first, or second after any other edge
        const double one = w * rate_ * (1 + rest_ - w / (total_ - w));
        return one < 1.0 ? one : 1.0;
      }
      case Law::kExponential:
        break;
    }
    return -::expm1(-w * rate_);
  }

  // The chance that the edge and another of about the same weight are both picked, of whose chance `one` is: at least
  // 2 one - 1, whatever they have to do with each other.
  GLT_HOST_DEVICE double both(double one) const {
    const double two = one * one * pair_, least = 2 * one - 1;
    return two < least ? least : two < one ? two : one;
  }

 private:
  enum class Law { kCertain, kPower, kShare, kPair, kExponential };

  GLT_HOST_DEVICE double weight(int64_t edge) const {
    return static_cast<double>(weight_sum_[edge] - (edge > begin_ ? weight_sum_[edge - 1] : 0));
  }

  // Nothing is set here: a GPU's shared memory is not initialised.
  const uint64_t* weight_sum_;  // null: all edges have the chance `even_`
  int64_t begin_;
  double even_;  // of edges without weight, where there are weights
  double pair_;  // by how much more likely that is than if draws were independent
  Law law_;
  double rate_, power_, rest_, total_;
};

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

// One edge type at one hop. All nodes have rows.
struct HotnessHop {
  const CsrView* csr;
  const int64_t* num_neighbors;  // [hop + 1], edges per node at each hop; -1: all
  bool weighted = false;         // draws are proportional to the weights of csr
  bool replace = false;          // drawn with replacement
  int64_t hop;                   // from 0
  const float* expanded;         // [num_nodes, num_columns]: found(v, i) in column i, filled up to column `hop`
  const float* neighbor;         // [num_neighbor_nodes, num_columns], likewise, of the type of neighbours
  int64_t num_columns;           // above `hop`
  // Bits [(num_edges + 63) / 64] of find_repeated and of find_mutual, with the edges that may lead back; null: none.
  const uint64_t* repeated;
  const uint64_t* mutual;
  const CsrView* back;
  const int64_t* back_neighbors;  // [hop + 1], num_neighbors of `back`
};

// Adds, for every edge v -> u of `at`, -log(1 - taken(v -> u)) to doubt[u], in units of kDoubtUnit.
void add_doubt(const HotnessHop& at, int64_t* doubt, int num_threads);

// Sets bit e of mutual [(num_edges + 63) / 64] where edge e, v -> u of csr, has an edge u -> v in `back`; clears
// others. Needs 4 bytes per edge of `back` and 4 bytes per node and thread meanwhile.
void find_mutual(const CsrView& csr, const CsrView& back, uint64_t* mutual, int num_threads);

// Sets bit e of repeated [(num_edges + 63) / 64] where an edge before e has the same ends; clears others. Needs 4 bytes
// per node and thread meanwhile.
void find_repeated(const CsrView& csr, uint64_t* repeated, int num_threads);

}  // namespace glt
