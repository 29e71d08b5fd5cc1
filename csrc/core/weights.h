// Edge weights in the form that draws need: integers, so that every machine decides alike, as prefix sums of each row
// with cut points into them.
//
// A draw is a number below the sum of a row; the edge is found by looking it up among the prefix sums. Cut points
// (Chen & Asau, AIIE Transactions 6(2), 1974) say where to start: the axis of sums is cut into equal pieces, about one
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

}  // namespace glt
