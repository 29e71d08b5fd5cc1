#include "core/crc32.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace glt {
namespace {

// Polynomials over GF(2) modulo the CRC's, reflected: bit 31 is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0xEDB88320u;
constexpr uint32_t kOne = 1u << 31;

constexpr uint32_t times_x(uint32_t a) {
  return (a >> 1) ^ (a & 1 ? kPolynomial : 0);
}

constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a; a <<= 1, b = times_x(b))
    if (a & kOne) product ^= b;
  return product;
}

// x to the power n.
constexpr uint32_t power_of_x(uint64_t n) {
  uint32_t result = kOne;
  for (uint32_t square = kOne >> 1; n; n >>= 1, square = multiply(square, square))
    if (n & 1) result = multiply(result, square);
  return result;
}

// kTables[k][b]: what byte b does to the register, k bytes later. Eight bytes at a time need eight look-ups and no
// dependency between them ("slicing by 8": Kounavis and Berry, ISCC 2005).
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t a = b;
    for (int bit = 0; bit < 8; ++bit) a = times_x(a);
    tables[0][b] = a;
  }
  for (int k = 1; k < 8; ++k)
    for (int b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 255];
  return tables;
}

constexpr Tables kTables = make_tables();

// All functions below work on the bare register: zlib's checksum is its complement.
uint32_t by_table(const unsigned char* p, size_t n, uint32_t reg) {
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);  // little-endian, as the reflected register is
    word ^= reg;
    reg = 0;
    for (int k = 0; k < 8; ++k) reg ^= kTables[7 - k][(word >> (8 * k)) & 255];
  }
  for (; n; ++p, --n) reg = (reg >> 8) ^ kTables[0][(reg ^ *p) & 255];
  return reg;
}

#if defined(__x86_64__)
// Carry-less multiplication folds 64 bytes at a time (Gopal et al., "Fast CRC computation for generic polynomials using
// PCLMULQDQ", Intel 2009): what lies n bits ahead counts as much here, once multiplied by x^n. A reflected product
// comes out one bit low, hence the shift of the constants.
constexpr long long fold_constant(uint64_t n) {
  return static_cast<long long>(uint64_t{power_of_x(n)} << 1);
}

__attribute__((target("pclmul,sse2"))) inline __m128i folded(__m128i ahead, __m128i by, __m128i here) {
  return _mm_xor_si128(here,
                       _mm_xor_si128(_mm_clmulepi64_si128(ahead, by, 0x00), _mm_clmulepi64_si128(ahead, by, 0x11)));
}

__attribute__((target("pclmul,sse2"))) uint32_t by_folding(const unsigned char* p, size_t n, uint32_t reg) {
  const auto load = [](const unsigned char* q) __attribute__((target("pclmul,sse2"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  };
  const __m128i by_512 = _mm_set_epi64x(fold_constant(512 - 32), fold_constant(512 + 32));
  const __m128i by_128 = _mm_set_epi64x(fold_constant(128 - 32), fold_constant(128 + 32));
  __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(reg)));
  __m128i b = load(p + 16), c = load(p + 32), d = load(p + 48);
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
    a = folded(a, by_512, load(p));
    b = folded(b, by_512, load(p + 16));
    c = folded(c, by_512, load(p + 32));
    d = folded(d, by_512, load(p + 48));
  }
  a = folded(folded(folded(a, by_128, b), by_128, c), by_128, d);
  unsigned char rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), a);
  return by_table(p, n, by_table(rest, 16, 0));
}
#endif

}  // namespace

uint32_t crc32(const void* data, size_t n, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool can_fold = __builtin_cpu_supports("pclmul");
  if (can_fold && n >= 128) return ~by_folding(p, n, ~crc);
#endif
  return ~by_table(p, n, ~crc);
}

uint32_t crc32_of_both(uint32_t first, uint32_t second, int64_t num_bytes) {
  return multiply(power_of_x(8 * static_cast<uint64_t>(num_bytes)), first) ^ second;
}

}  // namespace glt
