// Rows by id from a table in several tiers of memory: the arithmetic of the kernel, one source for host and device.
//
// The host runs it thread by thread (tests without a GPU); gather.cu launches it. No thread needs another: the lanes of
// a tile find the same rows each by itself, since their equal loads are one for the hardware.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/check.h"
#include "core/rng.h"

namespace glt::cuda {

// A part of a row as kernels move it, copied or widened to float32: kBytes bytes that are loaded and stored by one
// instruction.
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

constexpr int kMaxTiers = 16;
constexpr int kMaxLanes = 32;
constexpr int kRowsInFlight = 4;  // per tile: their loads are all issued before the first store waits for one
constexpr uint64_t kNoError = ~uint64_t{0};

// Rows [end of the tier before, end) of the table.
struct Tier {
  const std::byte* rows;
  int64_t end;
  int64_t stride;  // bytes from row to row
};

// All pointers must be readable where the gather runs: device memory, a peer's, or pinned host memory.
struct TieredTable {
  int64_t num_rows = 0;
  int64_t row_bytes = 0;
  Tier tier[kMaxTiers] = {};
  int num_tiers = 0;
  const uint32_t* row_of = nullptr;  // [num_ids], row (over all tiers) of id - first_id; null: the same
  int64_t num_ids = 0;
  int64_t first_id = 0;
  Widen widen = Widen::kNone;
  const float* scale = nullptr;  // [num_rows], of int8 rows; null: 1
};

struct GatherCall {
  const void* ids;  // [n] int64, or int32
  bool wide;        // int64
  int64_t n;
  const int32_t* count = nullptr;       // where given, *count ids count, and n is the most there may be
  const uint32_t* positions = nullptr;  // [n], row of `out` for each id; null: 0, 1, 2, ...
  std::byte* out;                       // [num_out], rows one after the other
  int64_t num_out;
  uint64_t* error;  // becomes the lowest position of an id (or position) out of range; kNoError before
};

// How rows are cut into pieces; of host and device alike, so that the tests see the same pieces.
struct RowPieces {
  int width;      // bytes of a piece, or elements where rows are widened
  int num;        // per row
  int lane_bits;  // a tile of 2^lane_bits threads moves a row
  int skew_mask;  // rows longer than a tile: pieces per 128-byte line - 1, so that tiles read whole lines; else 0
};

GLT_HOST_DEVICE int64_t out_bytes(const TieredTable& t) {
  // By factors that are known: a division of 64 bits is a subroutine on a GPU.
  return t.row_bytes * (t.widen == Widen::kNone ? 1 : t.widen == Widen::kInt8 ? 4 : 2);
}

inline RowPieces pieces_of(const TieredTable& t, const GatherCall& c) {
  const auto address = [](const void* p) { return reinterpret_cast<uint64_t>(p); };
  uint64_t read = t.row_bytes;
  for (int i = 0; i < t.num_tiers; ++i) read |= address(t.tier[i].rows) | t.tier[i].stride;
  const uint64_t written = address(c.out) | out_bytes(t);
  const auto aligned = [](uint64_t bits, int most) {  // the largest power of two that divides it
    return static_cast<int>(std::min<uint64_t>(bits & -bits ? bits & -bits : most, most));
  };
  RowPieces p{};
  int bytes;
  if (t.widen == Widen::kNone) {
    p.width = bytes = aligned(read | written, 16);
  } else {
    const int stored = stored_bytes(t.widen);
    p.width = std::min(aligned(read, 4 * stored) / stored, aligned(written, 16) / 4);
    bytes = p.width * stored;
  }
  p.num = static_cast<int>(t.row_bytes / bytes);
  while ((1 << p.lane_bits) < std::min(p.num, kMaxLanes)) ++p.lane_bits;
  p.skew_mask = p.num > kMaxLanes ? 128 / bytes - 1 : 0;
  return p;
}

GLT_HOST_DEVICE void report(uint64_t* error, int64_t position) {
#if defined(__CUDA_ARCH__)
  atomicMin(reinterpret_cast<unsigned long long*>(error), static_cast<unsigned long long>(position));
#else
  if (static_cast<uint64_t>(position) < *error) *error = static_cast<uint64_t>(position);
#endif
}

// Where a row lies. `row` is below num_rows.
GLT_HOST_DEVICE const std::byte* find_row(const TieredTable& t, int64_t row) {
  int64_t begin = 0;
  int i = 0;
  for (; i + 1 < t.num_tiers && row >= t.tier[i].end; ++i) begin = t.tier[i].end;
  return t.tier[i].rows + (row - begin) * t.tier[i].stride;
}

GLT_HOST_DEVICE bool is_below(int64_t value, int64_t bound) {
  return static_cast<uint64_t>(value) < static_cast<uint64_t>(bound);  // and not negative
}

// What thread `thread` of `num_threads` does; both in multiples of the tile. A row that cannot be had becomes zeros.
template <typename Move>
GLT_HOST_DEVICE void gather_of_thread(const TieredTable& t, const GatherCall& c, const RowPieces& p, int64_t thread,
                                      int64_t num_threads) {
  using In = typename Move::In;
  using Out = typename Move::Out;
  const int lanes = 1 << p.lane_bits, lane = static_cast<int>(thread & (lanes - 1));
  const int64_t tile = thread >> p.lane_bits, num_tiles = num_threads >> p.lane_bits;
  int64_t n = c.n;
  if (c.count && *c.count < n) n = *c.count;
  const int64_t bytes_out = out_bytes(t);
  // Neighbouring tiles take neighbouring rows, so narrow rows too are written in whole lines. Each step asks for all
  // its rows before the next needs an answer: ids, then their rows, then their places.
  for (int64_t first = tile; first < n; first += kRowsInFlight * num_tiles) {
    int64_t index[kRowsInFlight], row[kRowsInFlight], place[kRowsInFlight];
    for (int r = 0; r < kRowsInFlight; ++r) {
      index[r] = first + r * num_tiles;
      if (index[r] >= n) index[r] = first;  // the last rows again, by the same tile, in place of a branch
      place[r] = index[r];
    }
    if (c.wide)
      for (int r = 0; r < kRowsInFlight; ++r) row[r] = static_cast<const int64_t*>(c.ids)[index[r]];
    else
      for (int r = 0; r < kRowsInFlight; ++r) row[r] = static_cast<const int32_t*>(c.ids)[index[r]];
    if (c.positions)
      for (int r = 0; r < kRowsInFlight; ++r) place[r] = c.positions[index[r]];
    for (int r = 0; r < kRowsInFlight; ++r)
      row[r] = static_cast<int64_t>(static_cast<uint64_t>(row[r]) - static_cast<uint64_t>(t.first_id));
    if (t.row_of)
      for (int r = 0; r < kRowsInFlight; ++r) row[r] = is_below(row[r], t.num_ids) ? int64_t{t.row_of[row[r]]} : -1;
    float scale[kRowsInFlight];
    for (int r = 0; r < kRowsInFlight; ++r) {
      const bool here = is_below(row[r], t.num_rows);
      if (!here || !is_below(place[r], c.num_out)) {
        if (lane == 0) report(c.error, index[r]);
        if (!here) row[r] = -1;
      }
      scale[r] = 1.0f;
    }
    if constexpr (Move::kIsScaled) {
      for (int r = 0; r < kRowsInFlight; ++r)
        if (t.scale && row[r] >= 0) scale[r] = t.scale[row[r]];
    }
    const std::byte* from[kRowsInFlight];
    std::byte* to[kRowsInFlight];
    int skew[kRowsInFlight];
    for (int r = 0; r < kRowsInFlight; ++r) {
      from[r] = row[r] < 0 ? nullptr : find_row(t, row[r]);
      to[r] = is_below(place[r], c.num_out) ? c.out + place[r] * bytes_out : nullptr;
      skew[r] = static_cast<int>(reinterpret_cast<uint64_t>(from[r]) / sizeof(In)) & p.skew_mask;
    }
    for (int v = lane; v < p.num + p.skew_mask; v += lanes) {
      In in[kRowsInFlight];
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int piece = v - skew[r];
        in[r] = load_once<sizeof(In)>(from[r] + piece * int64_t{sizeof(In)}, from[r] && is_below(piece, p.num));
      }
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int piece = v - skew[r];
        if (to[r] && is_below(piece, p.num))
          store_once(to[r] + piece * int64_t{sizeof(Out)}, Move::of(in[r], scale[r]));
      }
    }
  }
}

// Calls run.template operator()<Move>() with the Move that fits.
template <typename Run>
void with_move(const TieredTable& t, const RowPieces& p, Run&& run) {
  const auto widening = [&]<Widen kWiden>() {
    if (p.width == 4) return run.template operator()<Widened<kWiden, 4>>();
    if (p.width == 2) return run.template operator()<Widened<kWiden, 2>>();
    return run.template operator()<Widened<kWiden, 1>>();
  };
  if (t.widen == Widen::kBfloat16) return widening.template operator()<Widen::kBfloat16>();
  if (t.widen == Widen::kHalf) return widening.template operator()<Widen::kHalf>();
  if (t.widen == Widen::kInt8) return widening.template operator()<Widen::kInt8>();
  switch (p.width) {
    case 16:
      return run.template operator()<Copied<16>>();
    case 8:
      return run.template operator()<Copied<8>>();
    case 4:
      return run.template operator()<Copied<4>>();
    case 2:
      return run.template operator()<Copied<2>>();
    default:
      return run.template operator()<Copied<1>>();
  }
}

constexpr int kGatherThreads = 256;  // of a block

// out[positions[i]] = row of ids[i], as glt::gather_rows gives it on the host; all pointers are readable on
// `device`. Runs on its `stream`, does not synchronise; ids and positions out of range are reported in *call.error, and
// their rows become zeros. At most max_blocks blocks of kGatherThreads threads, so that a gather over PCIe, which a few
// can saturate, leaves the others to training; 0: as many as the device holds at once. Throws std::runtime_error naming
// the CUDA error when the launch fails.
void gather_rows(const TieredTable& table, const GatherCall& call, int max_blocks, int device, void* stream);

}  // namespace glt::cuda
