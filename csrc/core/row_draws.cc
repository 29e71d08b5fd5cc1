#include "core/row_draws.h"

#include <algorithm>

#include "core/philox_lanes.h"

namespace glt {
namespace {

#if defined(__x86_64__)

// Writes num_blocks blocks of the draws of kLanes nodes, from a stride to the next of each.
GLT_WIDE void make_lanes(const int64_t* node, const uint32_t* tree, const HopSpec& spec, int64_t num_blocks,
                         uint64_t* out, size_t stride) {
  RoundKeys keys[kGroups];
  set_keys(spec.batch_key, tree, keys);
  for (int64_t block = 0; block < num_blocks; ++block, out += 2) {
    Blocks blocks[kGroups];
    draw_blocks(node, NodeDraws::stream_of(spec.hop, spec.edge_type), block, keys, blocks);
    for (int g = 0; g < kGroups; ++g) {
      const __m256i even = _mm256_blend_epi32(blocks[g].c0, _mm256_slli_epi64(blocks[g].c1, 32), 0b10101010);
      const __m256i odd = _mm256_blend_epi32(blocks[g].c2, _mm256_slli_epi64(blocks[g].c3, 32), 0b10101010);
      const __m256i low = _mm256_unpacklo_epi64(even, odd), high = _mm256_unpackhi_epi64(even, odd);
      const auto at = [&](size_t lane) { return reinterpret_cast<__m128i*>(out + (g * kGroup + lane) * stride); };
      _mm_storeu_si128(at(0), _mm256_castsi256_si128(low));
      _mm_storeu_si128(at(1), _mm256_castsi256_si128(high));
      _mm_storeu_si128(at(2), _mm256_extracti128_si256(low, 1));
      _mm_storeu_si128(at(3), _mm256_extracti128_si256(high, 1));
    }
  }
}

#endif

}  // namespace

void RowDraws::make(const Rows& rows, const std::vector<int64_t>& of, const HopSpec& spec, int64_t k) {
  constexpr size_t kTogether = 8;
  constexpr int64_t kMostWasted = 64;  // draws of a lane that no row needs
  const size_t in_lanes = k <= kMostWasted ? of.size() : of.size() / kTogether * kTogether;  // rows
  stride_ = (k + 1) / 2 * 2;
  bits_.resize((in_lanes < of.size() ? of.size() : (of.size() + kTogether - 1) / kTogether * kTogether) * stride_);
  for (size_t first = 0; first < of.size(); first += kTogether) {
    uint64_t* out = bits_.data() + first * stride_;
    const size_t n = std::min(kTogether, of.size() - first);
#if defined(__x86_64__)
    static_assert(kTogether == kLanes);
    if (has_lanes() && first < in_lanes) {
      int64_t node[kLanes] = {};
      uint32_t tree[kLanes] = {};
      for (size_t j = 0; j < n; ++j) {
        node[j] = rows.node[of[first + j]];
        if (rows.tree) tree[j] = rows.tree[of[first + j]];
      }
      make_lanes(node, rows.tree ? tree : nullptr, spec, stride_ / 2, out, stride_);
      continue;
    }
#endif
    for (size_t j = 0; j < n; ++j) draws_of(rows, of[first + j], spec).fill(0, stride_, out + j * stride_);
  }
}

}  // namespace glt
