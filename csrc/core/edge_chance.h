// How likely an expansion of a node is to pick one of its edges.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/csr.h"

namespace glt {

// The chance of each of `degree` edges where all weigh the same; k < 0: all are taken.
inline double uniform_chance(int64_t k, int64_t degree, bool replace) {
  if (k < 0 || (!replace && k >= degree)) return 1.0;
  if (!replace || k == 0) return static_cast<double>(k) / static_cast<double>(degree);
  return -std::expm1(static_cast<double>(k) * std::log1p(-1.0 / static_cast<double>(degree)));
}

// The chance of each edge of one row, drawn by weight or uniformly.
class EdgeChance {
 public:
  EdgeChance() = default;

  // `node` has edges [begin, end).
  EdgeChance(const CsrView& csr, int64_t begin, int64_t end, int64_t k, bool weighted, bool replace);

  double operator()(int64_t edge) const {
    if (!weight_sum_) return even_;
    const double w = weight(edge);
    if (w == 0) return even_;  // these come last
    switch (law_) {
      case Law::kCertain:
        return 1.0;
      case Law::kPower:
        return -std::expm1(power_ * std::log1p(-w * rate_));
      case Law::kShare:
        return w * rate_;
      case Law::kPair:  // first, or second after any other edge
        return std::min(1.0, w * rate_ * (1 + rest_ - w / (total_ - w)));
      case Law::kExponential:
        break;
    }
    return -std::expm1(-w * rate_);
  }

  // The chance that the edge and another of about the same weight are both picked, of whose chance `one` is.
  double both(double one) const { return one >= 1 ? 1.0 : std::min(one, one * one * pair_); }

 private:
  enum class Law { kCertain, kPower, kShare, kPair, kExponential };

  double weight(int64_t edge) const {
    return static_cast<double>(weight_sum_[edge] - (edge > begin_ ? weight_sum_[edge - 1] : 0));
  }

  const uint64_t* weight_sum_ = nullptr;  // null: all edges have the chance `even_`
  int64_t begin_ = 0;
  double even_ = 0;  // of edges without weight, where there are weights
  double pair_ = 1;  // by how much more likely that is than if draws were independent
  Law law_ = Law::kCertain;
  double rate_ = 0, power_ = 0, rest_ = 0, total_ = 0;
};

}  // namespace glt
