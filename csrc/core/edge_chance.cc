#include "core/edge_chance.h"

namespace glt {

EdgeChance::EdgeChance(const CsrView& csr, int64_t first, int64_t end, int64_t k, bool weighted, bool replace) {
  begin(weighted ? csr.weight_sum : nullptr, first, end, k, replace);
  finish(end - first, k, replace, [&](const auto& of) {
    TwoSums sum{0, 0};
    for (int64_t e = first; e < end; ++e) {
      const TwoSums one = of(e);
      sum = {sum.first + one.first, sum.second + one.second};
    }
    return sum;
  });
}

}  // namespace glt
