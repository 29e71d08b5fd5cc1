// How likely an expansion of a node is to pick one of its edges. Host and device alike.
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

  // The same in two steps, for who adds up in other ways: `weight_sum` of the whole graph, null for uniform draws.
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

  // The chance that the edge and another of about the same weight are both picked, of whose chance `one` is.
  GLT_HOST_DEVICE double both(double one) const {
    const double two = one * one * pair_;
    return one >= 1 ? 1.0 : two < one ? two : one;
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

}  // namespace glt
