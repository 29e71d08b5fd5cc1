// Rows of float32 that are stored smaller: what is stored, and how it becomes float32 again, on host and device alike.
//
// bfloat16 and float16: the elements, one after the other. int8 and int4: first the factor of the row, a float32, then
// the elements, of int4 two in a byte, the lower four bits first, and zeros up to a multiple of 4 bytes. An element
// times the factor, rounded once, is the float32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/rng.h"

namespace glt {

enum class Packing : int { kNone, kBfloat16, kHalf, kInt8, kInt4 };

GLT_HOST_DEVICE constexpr bool has_factor(Packing packing) {
  return packing == Packing::kInt8 || packing == Packing::kInt4;
}

// Bytes of a row before its elements.
GLT_HOST_DEVICE constexpr int head_bytes(Packing packing) {
  return has_factor(packing) ? 4 : 0;
}

// Bytes of a packed row.
constexpr int64_t packed_bytes(Packing packing, int64_t num_columns) {
  if (!has_factor(packing)) return 2 * num_columns;
  const int64_t elements = packing == Packing::kInt8 ? num_columns : (num_columns + 1) / 2;
  return head_bytes(packing) + (elements + 3) / 4 * 4;
}

// The bits of the float32 that equals a half (IEEE binary16); NaNs stay NaNs and become quiet, as hardware makes them.
GLT_HOST_DEVICE uint32_t widened_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 0x3FFu;
  if (exponent == 0) return sign | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f);
  if (exponent == 31) return sign | 0x7F800000u | fraction << 13 | (fraction ? 0x400000u : 0u);
  return sign | (exponent + 112u) << 23 | fraction << 13;
}

// The bits of the float32 of one stored element, which is in the low bits; `factor` is of int8 and int4 alone.
template <Packing kPacking>
GLT_HOST_DEVICE uint32_t widened(uint32_t element, float factor) {
  if constexpr (kPacking == Packing::kBfloat16) return element << 16;
  if constexpr (kPacking == Packing::kHalf) return widened_half(static_cast<uint16_t>(element));
  const int number =
      kPacking == Packing::kInt8 ? int{static_cast<int8_t>(element)} : static_cast<int>((element & 15u) ^ 8u) - 8;
  return std::bit_cast<uint32_t>(static_cast<float>(number) * factor);
}

// How the rows of a table are stored, and how many elements each has.
struct RowFormat {
  Packing packing = Packing::kNone;
  int64_t num_columns = 0;  // of packed rows

  // Bytes of a row where it goes, given those of a stored one.
  int64_t out_bytes(int64_t row_bytes) const { return packing == Packing::kNone ? row_bytes : 4 * num_columns; }
};

// Turns one row into num_columns float32s; picks the fastest for this processor. Of NaNs of float16 some bits may
// differ.
using RowUnpack = void (*)(const std::byte* row, int64_t num_columns, float* out);
RowUnpack row_unpack_for(Packing packing);

// By how much packing changes rows: sums of squares of the differences and of the numbers, and the largest difference,
// of finite numbers.
struct PackingSums {
  double square_error = 0, square = 0;
  float largest = 0;
};

// Packs rows [n, num_columns] of float32 into [n, packed_bytes]; int8 and int4 take the nearest multiple of the row's
// factor, its largest magnitude over 127 or 7, bfloat16 and float16 round to the nearest, ties to even. Returns the
// position of the first number that cannot be stored, or -1: int8 and int4 store finite ones only, and no finite one
// becomes infinite. The same with any num_threads.
int64_t pack_rows(const float* rows, int64_t n, int64_t num_columns, Packing packing, std::byte* out, PackingSums& sums,
                  int num_threads);

}  // namespace glt
