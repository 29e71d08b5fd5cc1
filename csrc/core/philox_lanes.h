// The generator of rng.h for eight rows at a time, where the processor has the lanes.
#pragma once

#include "core/rng.h"
#include "core/wide.h"

#if defined(__x86_64__)

namespace glt {

constexpr int64_t kGroup = 4, kGroups = kLanes / kGroup;  // rows in a register; registers that do not wait for another

constexpr int kRounds = 10;

// The keys of the rounds of four blocks of Philox. As of the blocks' words, what counts is the low half of each 64-bit
// lane, where the multiplier wants it.
struct RoundKeys {
  __m256i k0[kRounds], k1[kRounds];

  GLT_WIDE void set(__m256i key) {
    k0[0] = key, k1[0] = _mm256_srli_epi64(key, 32);
    for (int round = 1; round < kRounds; ++round) {
      k0[round] = _mm256_add_epi32(k0[round - 1], _mm256_set1_epi32(static_cast<int>(0x9E3779B9)));
      k1[round] = _mm256_add_epi32(k1[round - 1], _mm256_set1_epi32(static_cast<int>(0xBB67AE85)));
    }
  }
};

struct Blocks {
  __m256i c0, c1, c2, c3;
};

// philox() of each lane. The high halves that it leaves mean nothing.
GLT_WIDE inline void philox_of(Blocks (&blocks)[kGroups], const RoundKeys (&keys)[kGroups]) {
  for (int round = 0; round < kRounds; ++round) {
    for (int g = 0; g < kGroups; ++g) {
      Blocks& b = blocks[g];
      const __m256i p0 = _mm256_mul_epu32(b.c0, _mm256_set1_epi64x(0xD2511F53));
      const __m256i p1 = _mm256_mul_epu32(b.c2, _mm256_set1_epi64x(0xCD9E8D57));
      b.c0 = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(b.c1, keys[g].k0[round]));
      b.c2 = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(b.c3, keys[g].k1[round]));
      b.c1 = p1;
      b.c3 = p0;
    }
  }
}

GLT_WIDE inline __m256i load(const int64_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
GLT_WIDE inline __m256i load(const uint32_t* from) {
  return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// The keys that kLanes rows draw under: batch_key, or tree_key() of each where `tree` is not null.
GLT_WIDE inline void set_keys(uint64_t batch_key, const uint32_t* tree, RoundKeys (&keys)[kGroups]) {
  for (RoundKeys& of_group : keys) of_group.set(_mm256_set1_epi64x(static_cast<int64_t>(batch_key)));
  if (!tree) return;
  Blocks blocks[kGroups];  // tree_key(), the first two words of a block
  for (int g = 0; g < kGroups; ++g) {
    const __m256i zero = _mm256_setzero_si256();
    blocks[g] = {load(tree + g * kGroup), zero, zero,
                 _mm256_set1_epi64x(0xFFFF0000u | static_cast<uint32_t>(Purpose::kTree))};
  }
  philox_of(blocks, keys);
  for (int g = 0; g < kGroups; ++g)
    keys[g].set(_mm256_blend_epi32(blocks[g].c0, _mm256_slli_epi64(blocks[g].c1, 32), 0b10101010));
}

// Blocks number `block` of the draws of kLanes nodes: draws 2 * block and 2 * block + 1 of each.
GLT_WIDE inline void draw_blocks(const int64_t* node, uint32_t stream, int64_t block, const RoundKeys (&keys)[kGroups],
                                 Blocks (&blocks)[kGroups]) {
  for (int g = 0; g < kGroups; ++g) {
    const __m256i word = load(node + g * kGroup);
    blocks[g] = {word, _mm256_srli_epi64(word, 32), _mm256_set1_epi64x(block), _mm256_set1_epi64x(stream)};
  }
  philox_of(blocks, keys);
}

}  // namespace glt

#endif
