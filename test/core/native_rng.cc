// The generator as the host computes it, for tests: its blocks, and the first draws of nodes.
#include <cstdint>

#include "core/rng.h"

extern "C" void philox(const uint32_t* counter, uint64_t key, uint32_t* out) {
  const glt::Bits128 bits = glt::philox({{counter[0], counter[1], counter[2], counter[3]}}, key);
  for (int i = 0; i < 4; ++i) out[i] = bits.word[i];
}

// out[i * draws + d] = draw d of nodes[i], below bounds[i].
extern "C" void node_draws(const int64_t* nodes, const uint64_t* bounds, int64_t n, uint64_t batch_key, uint32_t hop,
                           int draws, uint64_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    glt::NodeDraws draw(batch_key, hop, 0, static_cast<uint64_t>(nodes[i]));
    for (int d = 0; d < draws; ++d) out[i * draws + d] = glt::bounded(draw(static_cast<uint32_t>(d)), bounds[i]);
  }
}
