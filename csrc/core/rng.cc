#include "core/rng.h"

#include "core/wide.h"

namespace glt {
namespace {

// Draws 2b and 2b + 1 of node i go to out[i * stride + 2b].
struct Blocks {
  const int64_t* node;
  const uint64_t* key;  // null: batch_key
  uint64_t batch_key;
  uint32_t hop, edge_type;
  int64_t num_blocks;  // of each node
  uint64_t* out;
  int64_t stride;
};

void fill_one_by_one(const Blocks& blocks, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const NodeDraws draws(blocks.key ? blocks.key[i] : blocks.batch_key, blocks.hop, blocks.edge_type,
                          static_cast<uint64_t>(blocks.node[i]));
    draws.fill(0, 2 * blocks.num_blocks, blocks.out + i * blocks.stride);
  }
}

#if defined(__x86_64__)

// Four blocks of Philox; a word of each in the low half of a 64-bit lane, where the multiplier wants it.
struct Lanes {
  __m256i c0, c1, c2, c3, k0, k1;
};

[[gnu::target("avx2"), gnu::always_inline]] inline void round_of(Lanes& l) {
  const __m256i p0 = _mm256_mul_epu32(l.c0, _mm256_set1_epi64x(0xD2511F53));
  const __m256i p1 = _mm256_mul_epu32(l.c2, _mm256_set1_epi64x(0xCD9E8D57));
  // The high halves of c1 and c3 hold what the multiplier and the shifts ignore.
  l.c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), l.c1), l.k0);
  l.c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), l.c3), l.k1);
  l.c1 = p1;
  l.c3 = p0;
  l.k0 = _mm256_add_epi32(l.k0, _mm256_set1_epi32(static_cast<int>(0x9E3779B9)));
  l.k1 = _mm256_add_epi32(l.k1, _mm256_set1_epi32(static_cast<int>(0xBB67AE85)));
}

[[gnu::target("avx2"), gnu::always_inline]] inline void store(const Lanes& l, uint64_t* out, int64_t stride) {
  const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
  const __m256i even = _mm256_or_si256(_mm256_and_si256(l.c0, low), _mm256_slli_epi64(l.c1, 32));
  const __m256i odd = _mm256_or_si256(_mm256_and_si256(l.c2, low), _mm256_slli_epi64(l.c3, 32));
  const __m256i a = _mm256_unpacklo_epi64(even, odd), b = _mm256_unpackhi_epi64(even, odd);
  const auto at = [&](int64_t i) { return reinterpret_cast<__m128i*>(out + i * stride); };
  _mm_storeu_si128(at(0), _mm256_castsi256_si128(a));
  _mm_storeu_si128(at(1), _mm256_castsi256_si128(b));
  _mm_storeu_si128(at(2), _mm256_extracti128_si256(a, 1));
  _mm_storeu_si128(at(3), _mm256_extracti128_si256(b, 1));
}

// Eight nodes at a time, in two groups that do not wait for each other.
[[gnu::target("avx2")]] void fill_by_eight(const Blocks& blocks, int64_t end) {
  const __m256i stream = _mm256_set1_epi64x(NodeDraws::stream_of(blocks.hop, blocks.edge_type));
  for (int64_t i = 0; i < end; i += 8) {
    __m256i node[2], key[2];
    for (int g = 0; g < 2; ++g) {
      const int64_t at = i + 4 * g;
      node[g] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(blocks.node + at));
      key[g] = blocks.key ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(blocks.key + at))
                          : _mm256_set1_epi64x(static_cast<int64_t>(blocks.batch_key));
    }
    for (int64_t b = 0; b < blocks.num_blocks; ++b) {
      Lanes lanes[2];
      for (int g = 0; g < 2; ++g)
        lanes[g] = {node[g], _mm256_srli_epi64(node[g], 32), _mm256_set1_epi64x(b), stream,
                    key[g],  _mm256_srli_epi64(key[g], 32)};
      for (int round = 0; round < 10; ++round) {
        round_of(lanes[0]);
        round_of(lanes[1]);
      }
      for (int g = 0; g < 2; ++g) store(lanes[g], blocks.out + (i + 4 * g) * blocks.stride + 2 * b, blocks.stride);
    }
  }
}

#endif

}  // namespace

void RowDraws::fill(const int64_t* node, const uint64_t* key, uint64_t batch_key, int64_t n, uint32_t hop,
                    uint32_t edge_type, int64_t k) {
  stride_ = (k + 1) / 2 * 2;
  bits_.resize(n * stride_);
  const Blocks blocks{node, key, batch_key, hop, edge_type, stride_ / 2, bits_.data(), stride_};
  int64_t done = 0;
#if defined(__x86_64__)
  if (has_lanes()) {
    done = n / 8 * 8;
    fill_by_eight(blocks, done);
  }
#endif
  fill_one_by_one(blocks, done, n);
}

}  // namespace glt
