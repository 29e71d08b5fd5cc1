// Pieces of a row as kernels move them: 1 to 16 bytes at once, copied or widened to float32. Host and device alike.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/check.h"
#include "core/rng.h"  // GLT_HOST_DEVICE

namespace glt::cuda {

// kBytes bytes that are loaded and stored by one instruction.
template <int kBytes>
struct alignas(kBytes) Bits {
  using Word = std::conditional_t<kBytes == 1, uint8_t, std::conditional_t<kBytes == 2, uint16_t, uint32_t>>;
  static constexpr int kWords = kBytes / sizeof(Word);
  Word word[kWords];
};

// What is at `from`, or zeros where `wanted` is false. A row is read once per batch, so it would only push others out
// of the L1 cache. The memory must not change while the kernel runs.
template <int kBytes>
GLT_HOST_DEVICE Bits<kBytes> load_once(const std::byte* from, bool wanted) {
  Bits<kBytes> bits{};
#if defined(__CUDA_ARCH__)
  // Predicated in assembly: from an `if` the compiler makes a branch per row, which keeps the loads apart.
  const int go = wanted;
  if constexpr (kBytes == 16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(bits.word[0]), "+r"(bits.word[1]), "+r"(bits.word[2]), "+r"(bits.word[3])
        : "l"(from), "r"(go));
  } else if constexpr (kBytes == 8) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
                 : "+r"(bits.word[0]), "+r"(bits.word[1])
                 : "l"(from), "r"(go));
  } else if constexpr (kBytes == 4) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc.L1::no_allocate.u32 %0, [%1]; }"
                 : "+r"(bits.word[0])
                 : "l"(from), "r"(go));
  } else {
    if (wanted) bits.word[0] = __ldg(reinterpret_cast<const typename Bits<kBytes>::Word*>(from));
  }
#else
  if (!wanted) return bits;
  // What the hardware would fault on must not pass here.
  require(reinterpret_cast<uint64_t>(from) % kBytes == 0, "a load of ", kBytes, " bytes at an odd address");
  std::memcpy(&bits, from, kBytes);
#endif
  return bits;
}

template <int kBytes>
GLT_HOST_DEVICE void store_once(std::byte* to, const Bits<kBytes>& bits) {
#if defined(__CUDA_ARCH__)
  if constexpr (kBytes == 16)
    __stcs(reinterpret_cast<uint4*>(to), make_uint4(bits.word[0], bits.word[1], bits.word[2], bits.word[3]));
  else if constexpr (kBytes == 8)
    __stcs(reinterpret_cast<uint2*>(to), make_uint2(bits.word[0], bits.word[1]));
  else
    __stcs(reinterpret_cast<typename Bits<kBytes>::Word*>(to), bits.word[0]);
#else
  require(reinterpret_cast<uint64_t>(to) % kBytes == 0, "a store of ", kBytes, " bytes at an odd address");
  std::memcpy(to, &bits, kBytes);
#endif
}

// The bits of the float32 that equals a half (IEEE binary16); NaNs stay NaNs and become quiet, as hardware makes them.
GLT_HOST_DEVICE uint32_t widened_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 0x3FFu;
  if (exponent == 0) return sign | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f);
  if (exponent == 31) return sign | 0x7F800000u | fraction << 13 | (fraction ? 0x400000u : 0u);
  return sign | (exponent + 112u) << 23 | fraction << 13;
}

enum class Widen : int { kNone, kBfloat16, kHalf, kInt8 };

// Bytes of a stored element that is to be widened.
constexpr int stored_bytes(Widen widen) {
  return widen == Widen::kInt8 ? 1 : 2;
}

// The bits of the float32 of one stored element; `scale` is of int8 alone.
template <Widen kWiden>
GLT_HOST_DEVICE uint32_t widened(uint32_t element, float scale) {
  if constexpr (kWiden == Widen::kBfloat16) return element << 16;
  if constexpr (kWiden == Widen::kHalf) return widened_half(static_cast<uint16_t>(element));
  return std::bit_cast<uint32_t>(static_cast<float>(static_cast<int8_t>(element)) * scale);
}

// How a row passes from a table to the result: kBytes bytes at a time, as they are.
template <int kBytes>
struct Copied {
  static constexpr bool kIsScaled = false;
  using In = Bits<kBytes>;
  using Out = Bits<kBytes>;
  GLT_HOST_DEVICE static Out of(const In& in, float) { return in; }
};

// kElements elements at a time, each widened to float32.
template <Widen kWiden, int kElements>
struct Widened {
  static constexpr bool kIsScaled = kWiden == Widen::kInt8;
  static constexpr int kStored = stored_bytes(kWiden);
  using In = Bits<kElements * kStored>;
  using Out = Bits<kElements * 4>;
  GLT_HOST_DEVICE static Out of(const In& in, float scale) {
    constexpr int kPerWord = kElements / In::kWords;
    Out out;
    for (int e = 0; e < kElements; ++e) {
      const uint32_t element = uint32_t{in.word[e / kPerWord]} >> (e % kPerWord * 8 * kStored);
      out.word[e] = widened<kWiden>(element & (kStored == 1 ? 0xFFu : 0xFFFFu), scale);
    }
    return out;
  }
};

}  // namespace glt::cuda
