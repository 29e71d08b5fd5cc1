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

template <typename T>
void sum_row(const T* weight, int64_t begin, int64_t end, uint64_t* weight_sum, const char* name) {
  double largest = 0;
  for (int64_t e = begin; e < end; ++e) {
    require(weight[e] >= 0 && std::isfinite(weight[e]), name, "[", e, "] = ", weight[e],
            ": expected a finite weight of at least 0");
    largest = std::max(largest, static_cast<double>(weight[e]));
  }
  // weight < 2^exponent and degree < 2^bit_width: the scaled sum is below 2^kSumBits, whatever is rounded up to 1.
  int exponent = 0;
  std::frexp(largest, &exponent);
  const int scale = kSumBits - exponent - std::bit_width(static_cast<uint64_t>(end - begin));
  uint64_t sum = 0;
  for (int64_t e = begin; e < end; ++e) {
    if (weight[e] > 0)
      sum += std::max(uint64_t{1}, static_cast<uint64_t>(std::ldexp(static_cast<double>(weight[e]), scale)));
    weight_sum[e] = sum;
  }
}

}  // namespace

void build_weights(const int64_t* indptr, int64_t num_rows, Weights weight, uint64_t* weight_sum,
                   uint32_t* weight_guide, const char* name) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t begin = indptr[r], end = indptr[r + 1];
    require(end - begin <= UINT32_MAX, "row ", r, " has ", end - begin, " edges: weights allow at most 2^32 - 1");
    std::visit([&](auto* w) { sum_row(w, begin, end, weight_sum, name); }, weight);
    const WeightGuide guide(r, begin, end, begin < end ? weight_sum[end - 1] : 0);
    for_each_cut(guide, weight_sum + begin, end - begin, [&](int64_t at, uint32_t edge) { weight_guide[at] = edge; });
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
