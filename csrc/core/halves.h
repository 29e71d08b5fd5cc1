// Numbers of two bytes as float32 and back, rounded to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace glt {

inline float widened(uint16_t bfloat) {
  return std::bit_cast<float>(uint32_t{bfloat} << 16);
}

inline uint16_t to_bfloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace glt
