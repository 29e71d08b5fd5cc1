// Draws for many rows at once, eight side by side where the processor has the lanes: what the draws of each row by
// itself say.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sample.h"

namespace glt {

// Writes the positions of counts[i] picks of every row, where every edge of a row is equally likely. Behind the last,
// `position` has room for kRunSlack.
void pick_uniformly(const Rows& rows, const HopSpec& spec, const uint32_t* counts, const RowSpans& spans,
                    int64_t* position);

// k distinct numbers of [begin, begin + n), each subset equally likely, by the draws first_draw, ..., first_draw + k -
// 1: floyd_small for any k.
void pick_distinct(int64_t begin, int64_t n, int64_t k, NodeDraws& draws, uint32_t first_draw, int64_t* pick);

// A node's draws, made before.
struct MadeDraws {
  const uint64_t* bits;

  uint64_t operator()(uint32_t draw) const { return bits[draw]; }
};

class RowDraws {
 public:
  // Makes draws 0, ..., k - 1 of rows[of[0]], rows[of[1]], ...: what draws_of gives, at a fraction of the cost, since
  // the blocks of several nodes go through the generator side by side.
  void make(const Rows& rows, const std::vector<int64_t>& of, const HopSpec& spec, int64_t k);

  // Those of rows[of[j]].
  MadeDraws of(size_t j) const { return {bits_.data() + j * stride_}; }

 private:
  size_t stride_ = 0;  // k, made even: a block gives two draws
  Buffer<uint64_t> bits_;
};

}  // namespace glt
