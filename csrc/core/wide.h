// What code of eight lanes at a time shares. It is used where the processor has AVX2, and decides nothing: the code
// beside it that goes one by one gives the same.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstdint>

#define GLT_WIDE __attribute__((target("avx2,popcnt,bmi2")))

namespace glt {

constexpr int64_t kLanes = 8;

inline bool has_lanes() {
  static const bool has =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  return has;
}

// Of each mask of lanes those that are set, ascending, a byte each.
constexpr std::array<uint64_t, 256> lanes_of_masks() {
  std::array<uint64_t, 256> lanes{};
  for (uint64_t mask = 0; mask < lanes.size(); ++mask)
    for (uint64_t lane = 0, at = 0; lane < kLanes; ++lane)
      if (mask >> lane & 1) lanes[mask] |= lane << 8 * at++;
  return lanes;
}
inline constexpr std::array<uint64_t, 256> kLanesOfMask = lanes_of_masks();

// Writes first + lane for each lane of `mask`, ascending; returns how many. `out` has room for kLanes: what fewer lanes
// leave of it is overwritten.
GLT_WIDE inline int64_t write_lanes(uint32_t mask, int64_t first, uint32_t* out) {
  const __m128i lanes = _mm_cvtsi64_si128(static_cast<int64_t>(kLanesOfMask[mask]));
  const __m256i found = _mm256_add_epi32(_mm256_cvtepu8_epi32(lanes), _mm256_set1_epi32(static_cast<int>(first)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), found);
  return std::popcount(mask);
}

}  // namespace glt

#endif
