#include "core/edge_chance.h"

namespace glt {

EdgeChance::EdgeChance(const CsrView& csr, int64_t begin, int64_t end, int64_t k, bool weighted, bool replace)
    : begin_(begin) {
  const int64_t degree = end - begin;
  even_ = uniform_chance(k, degree, replace);
  if (k > 0 && degree > 1)  // exact for equal weights without replacement, k (k - 1) / (degree (degree - 1)) pairs
    pair_ = static_cast<double>(k - 1) / static_cast<double>(k) *
            (replace ? 1.0 : static_cast<double>(degree) / static_cast<double>(degree - 1));
  if (!weighted || !csr.weight_sum || k < 0 || k == 0 || degree == 0 || (!replace && k >= degree)) return;
  const uint64_t total = csr.weight_sum[end - 1];
  if (total == 0) return;  // uniform among edges that all weigh nothing
  weight_sum_ = csr.weight_sum;
  total_ = static_cast<double>(total);
  if (replace) {
    even_ = 0;
    law_ = Law::kPower;
    rate_ = 1 / total_;
    power_ = static_cast<double>(k);
    return;
  }
  int64_t num_positive = 0;
  for (int64_t e = begin; e < end; ++e) num_positive += weight(e) > 0;
  even_ = k > num_positive ? static_cast<double>(k - num_positive) / static_cast<double>(degree - num_positive) : 0;
  if (k >= num_positive) return;  // certain
  rate_ = 1 / total_;
  if (k == 1) {
    law_ = Law::kShare;
    return;
  }
  if (k == 2) {
    law_ = Law::kPair;
    for (int64_t e = begin; e < end; ++e) rest_ += weight(e) / (total_ - weight(e));
    return;
  }
  // Successive draws take the k edges whose exponential clocks, of rates w, ring first (Efraimidis & Spirakis, 2006).
  // With many edges the k-th rings at about a fixed time, which is the one by which k rings are expected.
  law_ = Law::kExponential;
  rate_ = static_cast<double>(k) / total_;
  for (int step = 0; step < 50; ++step) {  // Newton on a concave rising function, from its left: never overshoots
    double rung = 0, slope = 0;
    for (int64_t e = begin; e < end; ++e) {
      const double w = weight(e), silent = std::exp(-w * rate_);
      rung += 1 - silent;
      slope += w * silent;
    }
    const double missing = static_cast<double>(k) - rung;
    if (missing < 1e-6 * static_cast<double>(k) || slope <= 0) break;
    rate_ += missing / slope;
  }
}

}  // namespace glt
