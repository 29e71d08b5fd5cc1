#include "core/weights.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace glt {
namespace {

constexpr int kSumBits = 61;

// Calls visit(element of weight_guide, its value) for every cut point of a row.
template <typename Visit>
void for_each_cut(const WeightGuide& guide, const uint64_t* sum, int64_t degree, const Visit& visit) {
  int64_t edge = 0;
  for (uint64_t j = 0; j < guide.size; ++j) {
    while (edge + 1 < degree && sum[edge] <= j << guide.shift) ++edge;
    visit(guide.first + static_cast<int64_t>(j), static_cast<uint32_t>(edge));
  }
}

}  // namespace

// weight < 2^exponent and degree < 2^bit_width: the scaled sum is below 2^kSumBits, whatever is rounded up to 1.
WeightScale::WeightScale(double largest, int64_t degree) {
  int exponent = 0;
  std::frexp(largest, &exponent);
  exponent_ = kSumBits - exponent - std::bit_width(static_cast<uint64_t>(degree));
}

uint64_t WeightScale::operator()(double weight) const {
  return weight > 0 ? std::max(uint64_t{1}, static_cast<uint64_t>(std::ldexp(weight, exponent_))) : 0;
}

void check_weight(double weight, const char* name, int64_t at) {
  require(weight >= 0 && std::isfinite(weight), name, "[", at, "] = ", weight,
          ": expected a finite weight of at least 0");
}

void build_weight_row(int64_t row, int64_t begin, int64_t end, Weights weight, uint64_t* sum, uint32_t* guide,
                      const char* name) {
  const int64_t degree = end - begin;
  require(degree <= UINT32_MAX, "row ", row, " has ", degree, " edges: weights allow at most 2^32 - 1");
  std::visit(
      [&](auto* w) {
        double largest = 0;
        for (int64_t e = 0; e < degree; ++e) {
          check_weight(w[e], name, begin + e);
          largest = std::max(largest, static_cast<double>(w[e]));
        }
        const WeightScale scaled(largest, degree);
        uint64_t total = 0;
        for (int64_t e = 0; e < degree; ++e) sum[e] = total += scaled(w[e]);
      },
      weight);
  const WeightGuide cuts(row, begin, end, degree ? sum[degree - 1] : 0);
  for_each_cut(cuts, sum, degree, [&](int64_t at, uint32_t edge) { guide[at - cuts.first] = edge; });
}

void build_weights(const int64_t* indptr, int64_t num_rows, Weights weight, uint64_t* weight_sum,
                   uint32_t* weight_guide, const char* name) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t begin = indptr[r];
    const Weights of_row = std::visit([&](auto* w) { return Weights(w + begin); }, weight);
    build_weight_row(r, begin, indptr[r + 1], of_row, weight_sum + begin, weight_guide + (begin >> 3) + r, name);
  }
}

void validate_weights(const int64_t* indptr, int64_t num_rows, const uint64_t* weight_sum,
                      const uint32_t* weight_guide) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t begin = indptr[r], end = indptr[r + 1];
    for (int64_t e = begin + 1; e < end; ++e)
      require(weight_sum[e - 1] <= weight_sum[e], "weight_sum[", e, "] = ", weight_sum[e],
              " is below the sum before it, ", weight_sum[e - 1], ": expected what build_weights makes");
    const uint64_t total = begin < end ? weight_sum[end - 1] : 0;
    require(total < uint64_t{1} << (kSumBits + 1), "weight_sum[", end - 1, "] = ", total, ": expected less than 2^62");
    for_each_cut(WeightGuide(r, begin, end, total), weight_sum + begin, end - begin, [&](int64_t at, uint32_t edge) {
      require(weight_guide[at] == edge, "weight_guide[", at, "] = ", weight_guide[at], ": expected ", edge,
              ", the cut point of row ", r, "; make both by build_weights");
    });
  }
}

}  // namespace glt
