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
#include "core/packed_rows.h"
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

// How a row passes from a table to the result: kBytes bytes at a time, as they are.
template <int kBytes>
struct Copied {
  static constexpr Packing kPacking = Packing::kNone;
  using In = Bits<kBytes>;
  using Out = Bits<kBytes>;
  GLT_HOST_DEVICE static int64_t place(int piece) { return piece * int64_t{kBytes}; }
  GLT_HOST_DEVICE static Out of(const In& in, float, int) { return in; }
};

// kElements elements at a time, each widened to float32; of int4 one at a time means a byte of which half is read.
template <Packing kOf, int kElements>
struct Widened {
  static constexpr Packing kPacking = kOf;
  static constexpr int kElementBits = kOf == Packing::kInt8 ? 8 : kOf == Packing::kInt4 ? 4 : 16;
  static constexpr int kStored = kElements * kElementBits < 8 ? 1 : kElements * kElementBits / 8;
  using In = Bits<kStored>;
  using Out = Bits<kElements * 4>;
  GLT_HOST_DEVICE static int64_t place(int piece) { return int64_t{piece} * kElements * kElementBits / 8; }
  GLT_HOST_DEVICE static Out of(const In& in, float factor, int piece) {
    constexpr int kPerWord = (kElements + In::kWords - 1) / In::kWords;
    const int first = kElements * kElementBits < 8 ? piece % 2 : 0;
    Out out;
    for (int e = 0; e < kElements; ++e) {
      const uint32_t element = uint32_t{in.word[e / kPerWord]} >> ((first + e % kPerWord) * kElementBits);
      out.word[e] = widened<kOf>(element & ((1u << kElementBits) - 1), factor);
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
  Packing packing = Packing::kNone;  // packed rows become float32
  int64_t num_columns = 0;           // of packed rows
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
  int width;      // bytes of a piece, or elements where rows are packed
  int num;        // per row
  int lane_bits;  // a tile of 2^lane_bits threads moves a row
  int skew_mask;  // rows longer than a tile: pieces per 128-byte line - 1, so that tiles read whole lines; else 0
};

GLT_HOST_DEVICE int64_t out_bytes(const TieredTable& t) {
  return t.packing == Packing::kNone ? t.row_bytes : 4 * t.num_columns;
}

inline RowPieces pieces_of(const TieredTable& t, const GatherCall& c) {
  const auto address = [](const void* p) { return reinterpret_cast<uint64_t>(p); };
  uint64_t read = t.row_bytes | head_bytes(t.packing);
  for (int i = 0; i < t.num_tiers; ++i) read |= address(t.tier[i].rows) | t.tier[i].stride;
  const uint64_t written = address(c.out) | out_bytes(t);
  const auto aligned = [](uint64_t bits, int most) {  // the largest power of two that divides it
    return static_cast<int>(std::min<uint64_t>(bits & -bits ? bits & -bits : most, most));
  };
  RowPieces p{};
  int bytes;
  if (t.packing == Packing::kNone) {
    p.width = bytes = aligned(read | written, 16);
    p.num = static_cast<int>(t.row_bytes / bytes);
  } else {
    const int bits = t.packing == Packing::kInt8 ? 8 : t.packing == Packing::kInt4 ? 4 : 16;
    p.width = std::min(8 * aligned(read, 8) / bits, aligned(written, 16) / 4);
    bytes = std::max(p.width * bits / 8, 1);
    p.num = static_cast<int>(t.num_columns / p.width);
  }
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
    for (int r = 0; r < kRowsInFlight; ++r) {
      const bool here = is_below(row[r], t.num_rows);
      if (!here || !is_below(place[r], c.num_out)) {
        if (lane == 0) report(c.error, index[r]);
        if (!here) row[r] = -1;
      }
    }
    const std::byte* from[kRowsInFlight];
    std::byte* to[kRowsInFlight];
    int skew[kRowsInFlight];
    for (int r = 0; r < kRowsInFlight; ++r) {
      from[r] = row[r] < 0 ? nullptr : find_row(t, row[r]);
      to[r] = is_below(place[r], c.num_out) ? c.out + place[r] * bytes_out : nullptr;
    }
    float factor[kRowsInFlight] = {};
    if constexpr (has_factor(Move::kPacking)) {
      for (int r = 0; r < kRowsInFlight; ++r) {
        factor[r] = std::bit_cast<float>(load_once<4>(from[r], from[r] != nullptr).word[0]);
        if (from[r]) from[r] += head_bytes(Move::kPacking);
      }
    }
    for (int r = 0; r < kRowsInFlight; ++r)
      skew[r] = static_cast<int>(reinterpret_cast<uint64_t>(from[r]) / sizeof(In)) & p.skew_mask;
    for (int v = lane; v < p.num + p.skew_mask; v += lanes) {
      In in[kRowsInFlight];
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int piece = v - skew[r];
        in[r] = load_once<sizeof(In)>(from[r] + Move::place(piece), from[r] && is_below(piece, p.num));
      }
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int piece = v - skew[r];
        if (to[r] && is_below(piece, p.num))
          store_once(to[r] + piece * int64_t{sizeof(Out)}, Move::of(in[r], factor[r], piece));
      }
    }
  }
}

// Calls run.template operator()<Move>() with the Move that fits.
template <typename Run>
void with_move(const TieredTable& t, const RowPieces& p, Run&& run) {
  const auto widening = [&]<Packing kPacking>() {
    if (p.width == 4) return run.template operator()<Widened<kPacking, 4>>();
    if (p.width == 2) return run.template operator()<Widened<kPacking, 2>>();
    return run.template operator()<Widened<kPacking, 1>>();
  };
  if (t.packing == Packing::kBfloat16) return widening.template operator()<Packing::kBfloat16>();
  if (t.packing == Packing::kHalf) return widening.template operator()<Packing::kHalf>();
  if (t.packing == Packing::kInt8) return widening.template operator()<Packing::kInt8>();
  if (t.packing == Packing::kInt4) return widening.template operator()<Packing::kInt4>();
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
