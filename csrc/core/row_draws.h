// The first draws of many nodes at once.
#pragma once

#include <cstdint>

#include "core/buffer.h"
#include "core/rng.h"

namespace glt {

class RowDraws {
 public:
  // Makes draws 0, ..., k - 1 of `n` nodes: what NodeDraws(key, hop, edge_type, node[i]) gives, at a fraction of the
  // cost, since the blocks of several nodes go through the generator side by side.
  //
  // Args:
  //   node: [n].
  //   key: [n], a key for each node; null: `batch_key` for all.
  void fill(const int64_t* node, const uint64_t* key, uint64_t batch_key, int64_t n, uint32_t hop, uint32_t edge_type,
            int64_t k);

  // The draws of node i, [k].
  const uint64_t* of(int64_t i) const { return bits_.data() + i * stride_; }

 private:
  int64_t stride_ = 0;  // k, made even: a block gives two draws
  Buffer<uint64_t> bits_;
};

}  // namespace glt
