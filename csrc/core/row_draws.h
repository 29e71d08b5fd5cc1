// The first draws of many nodes at once.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sample.h"

namespace glt {

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
