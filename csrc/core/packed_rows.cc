#include "core/packed_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define GLT_WIDE __attribute__((target("avx2,f16c")))
#endif

namespace glt {
namespace {

template <Packing kPacking>
float factor_of(const std::byte* row) {
  float factor = 1.0f;
  if constexpr (has_factor(kPacking)) std::memcpy(&factor, row, sizeof factor);
  return factor;
}

// Elements [first, n) of a row, one by one.
template <Packing kPacking>
void unpack_rest(const std::byte* row, float factor, int64_t first, int64_t n, float* out) {
  const std::byte* elements = row + head_bytes(kPacking);
  for (int64_t i = first; i < n; ++i) {
    uint32_t element;
    if constexpr (has_factor(kPacking)) {
      const auto byte = static_cast<uint32_t>(elements[kPacking == Packing::kInt8 ? i : i / 2]);
      element = kPacking == Packing::kInt8 ? byte : byte >> (i % 2 * 4);
    } else {
      uint16_t half;
      std::memcpy(&half, elements + 2 * i, sizeof half);
      element = half;
    }
    const uint32_t bits = widened<kPacking>(element, factor);
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

template <Packing kPacking>
void unpack_plain(const std::byte* row, int64_t n, float* out) {
  unpack_rest<kPacking>(row, factor_of<kPacking>(row), 0, n, out);
}

#if defined(__x86_64__)

bool is_wide() {
  static const bool is = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return is;
}

constexpr int64_t kLanes = 8;

// 8 elements from the i-th on.
template <Packing kPacking>
GLT_WIDE inline __m256 lanes_of(const std::byte* elements, int64_t i, __m256 factor) {
  if constexpr (!has_factor(kPacking)) {
    const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(elements + 2 * i));
    if constexpr (kPacking == Packing::kHalf) return _mm256_cvtph_ps(stored);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(stored), 16));
  }
  __m128i numbers;
  if constexpr (kPacking == Packing::kInt8) {
    numbers = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(elements + i));
  } else {
    int word;
    std::memcpy(&word, elements + i / 2, sizeof word);
    const __m128i pairs = _mm_cvtsi32_si128(word), low_bits = _mm_set1_epi8(15), sign = _mm_set1_epi8(8);
    const __m128i low = _mm_and_si128(pairs, low_bits), high = _mm_and_si128(_mm_srli_epi16(pairs, 4), low_bits);
    numbers = _mm_sub_epi8(_mm_xor_si128(_mm_unpacklo_epi8(low, high), sign), sign);
  }
  return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)), factor);
}

template <Packing kPacking>
GLT_WIDE void unpack_wide(const std::byte* row, int64_t n, float* out) {
  const float factor = factor_of<kPacking>(row);
  const __m256 factors = _mm256_set1_ps(factor);
  const std::byte* elements = row + head_bytes(kPacking);
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) _mm256_storeu_ps(out + i, lanes_of<kPacking>(elements, i, factors));
  unpack_rest<kPacking>(row, factor, whole, n, out);
}

#endif

template <Packing kPacking>
RowUnpack fastest() {
#if defined(__x86_64__)
  if (is_wide()) return unpack_wide<kPacking>;
#endif
  return unpack_plain<kPacking>;
}

uint16_t narrowed_half(uint32_t bits) {
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {  // below the smallest normal half: a multiple of 2^-24, as adding 0.5 rounds it
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

uint16_t narrowed_bfloat16(uint32_t bits) {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// Sums of a row, in parts that the compiler may keep in one register.
struct RowSums {
  static constexpr int kParts = 8;
  double square_error[kParts] = {}, square[kParts] = {};
  float largest[kParts] = {};

  [[gnu::always_inline]] void add(int part, float number, float stored) {
    const bool is_finite = std::isfinite(number);
    const double difference = is_finite ? double{stored} - double{number} : 0.0;
    const double known = is_finite ? double{number} : 0.0;
    square_error[part] += difference * difference;
    square[part] += known * known;
    largest[part] = std::max(largest[part], static_cast<float>(std::abs(difference)));
  }
};

// Packs a row; returns whether all of its numbers can be stored.
template <Packing kPacking>
[[gnu::always_inline]] inline bool pack_row(const float* row, int64_t n, std::byte* out, RowSums& sums) {
  std::byte* elements = out + head_bytes(kPacking);
  if constexpr (!has_factor(kPacking)) {
    bool fits = true;
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(row[i]);
      const uint16_t stored = kPacking == Packing::kHalf ? narrowed_half(bits) : narrowed_bfloat16(bits);
      std::memcpy(elements + 2 * i, &stored, sizeof stored);
      const auto back = std::bit_cast<float>(widened<kPacking>(stored, 1.0f));
      fits &= std::isfinite(back) || !std::isfinite(row[i]);
      sums.add(static_cast<int>(i % RowSums::kParts), row[i], back);
    }
    return fits;
  } else {
    constexpr float kLargest = kPacking == Packing::kInt8 ? 127.0f : 7.0f;
    float top = 0.0f;
    bool fits = true;
    for (int64_t i = 0; i < n; ++i) {
      fits &= std::abs(row[i]) <= std::numeric_limits<float>::max();
      top = std::max(top, std::abs(row[i]));
    }
    if (!fits) return false;
    float factor = top / kLargest;
    if (!std::isfinite(kLargest * factor)) factor = std::nextafter(factor, 0.0f);  // no finite number becomes infinite
    std::memcpy(out, &factor, sizeof factor);
    for (int64_t i = 0; i < n; ++i) {
      const float number = factor > 0 ? std::clamp(std::nearbyint(row[i] / factor), -kLargest, kLargest) : 0.0f;
      const auto stored = static_cast<int8_t>(number);
      if constexpr (kPacking == Packing::kInt8)
        elements[i] = static_cast<std::byte>(stored);
      else
        elements[i / 2] |= static_cast<std::byte>((stored & 15) << (i % 2 * 4));
      sums.add(static_cast<int>(i % RowSums::kParts), row[i], number * factor);
    }
    return true;
  }
}

template <Packing kPacking>
[[gnu::always_inline]] inline int64_t pack_all(const float* rows, int64_t n, int64_t num_columns, std::byte* out,
                                               PackingSums& sums) {
  const int64_t row_bytes = packed_bytes(kPacking, num_columns);
  for (int64_t i = 0; i < n; ++i) {
    const float* row = rows + i * num_columns;
    RowSums of_row;
    if (has_factor(kPacking)) std::memset(out + i * row_bytes, 0, row_bytes);
    if (!pack_row<kPacking>(row, num_columns, out + i * row_bytes, of_row)) return i;
    for (int part = 0; part < RowSums::kParts; ++part) {
      sums.square_error += of_row.square_error[part];
      sums.square += of_row.square[part];
      sums.largest = std::max(sums.largest, of_row.largest[part]);
    }
  }
  return -1;
}

#if defined(__x86_64__)
template <Packing kPacking>
GLT_WIDE int64_t pack_wide(const float* rows, int64_t n, int64_t num_columns, std::byte* out, PackingSums& sums) {
  return pack_all<kPacking>(rows, n, num_columns, out, sums);
}
#endif

template <Packing kPacking>
int64_t pack(const float* rows, int64_t n, int64_t num_columns, std::byte* out, PackingSums& sums) {
#if defined(__x86_64__)
  if (is_wide()) return pack_wide<kPacking>(rows, n, num_columns, out, sums);
#endif
  return pack_all<kPacking>(rows, n, num_columns, out, sums);
}

// Where in a row the first number is that cannot be stored.
int64_t first_unfit(const float* row, int64_t num_columns, Packing packing) {
  for (int64_t i = 0; i < num_columns; ++i) {
    const auto bits = std::bit_cast<uint32_t>(row[i]);
    if (has_factor(packing) && !std::isfinite(row[i])) return i;
    if (!std::isfinite(row[i])) continue;
    if (packing == Packing::kHalf && (narrowed_half(bits) & 0x7C00u) == 0x7C00u) return i;
    if (packing == Packing::kBfloat16 && (narrowed_bfloat16(bits) & 0x7F80u) == 0x7F80u) return i;
  }
  throw std::logic_error("all numbers of the row can be stored");
}

}  // namespace

int64_t pack_rows(const float* rows, int64_t n, int64_t num_columns, Packing packing, std::byte* out, PackingSums& sums,
                  int num_threads) {
  constexpr int64_t kChunkRows = 1024;
  const int64_t row_bytes = packed_bytes(packing, num_columns);
  if (num_columns == 0) {
    std::memset(out, 0, n * row_bytes);
    return -1;
  }
  const auto pack_some = [&](int64_t first, int64_t last, PackingSums& sums) {
    const int64_t n = last - first;
    const float* rows_of = rows + first * num_columns;
    std::byte* to = out + first * row_bytes;
    switch (packing) {
      case Packing::kBfloat16:
        return pack<Packing::kBfloat16>(rows_of, n, num_columns, to, sums);
      case Packing::kHalf:
        return pack<Packing::kHalf>(rows_of, n, num_columns, to, sums);
      case Packing::kInt8:
        return pack<Packing::kInt8>(rows_of, n, num_columns, to, sums);
      case Packing::kInt4:
        return pack<Packing::kInt4>(rows_of, n, num_columns, to, sums);
      case Packing::kNone:
        break;
    }
    throw std::logic_error("rows that are not packed are copied");
  };
  // Of each chunk, so that sums do not depend on who packs what.
  const int64_t num_chunks = (n + kChunkRows - 1) / kChunkRows;
  std::vector<PackingSums> of_chunk(num_chunks);
  std::vector<int64_t> bad(num_chunks, -1);
  for_row_chunks(n, kChunkRows, num_columns, num_threads, [&](int64_t first, int64_t last) {
    const int64_t row = pack_some(first, last, of_chunk[first / kChunkRows]);
    if (row >= 0) bad[first / kChunkRows] = first + row;
  });
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    if (bad[chunk] >= 0)
      return bad[chunk] * num_columns + first_unfit(rows + bad[chunk] * num_columns, num_columns, packing);
    sums.square_error += of_chunk[chunk].square_error;
    sums.square += of_chunk[chunk].square;
    sums.largest = std::max(sums.largest, of_chunk[chunk].largest);
  }
  return -1;
}

RowUnpack row_unpack_for(Packing packing) {
  switch (packing) {
    case Packing::kBfloat16:
      return fastest<Packing::kBfloat16>();
    case Packing::kHalf:
      return fastest<Packing::kHalf>();
    case Packing::kInt8:
      return fastest<Packing::kInt8>();
    case Packing::kInt4:
      return fastest<Packing::kInt4>();
    case Packing::kNone:
      break;
  }
  throw std::logic_error("rows that are not packed are copied");
}

}  // namespace glt
