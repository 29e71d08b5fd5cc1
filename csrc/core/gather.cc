#include "core/gather.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "core/memory.h"
#include "core/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define GLT_WIDE __attribute__((target("avx512f,avx512bw")))
#endif

namespace glt {
namespace {

// Copying picked rows, of one table or of several, to one piece of memory.
struct PickedRows {
  int64_t row_bytes;
  const std::byte* const* rows;  // [n]
  const uint32_t* positions;     // [n], which row of the output each becomes; null: 0, 1, 2, ...
  int64_t n;
};

using RowCopy = void (*)(const PickedRows& from, std::byte* out);

void copy_plain(const PickedRows& from, std::byte* out) {
  const auto& [row_bytes, rows, positions, n] = from;
  const RowAhead ahead(row_bytes);
  for (int64_t i = 0; i < std::min(ahead.rows, n); ++i) ahead.fetch(rows[i]);
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead.rows < n) ahead.fetch(rows[i + ahead.rows]);
    std::memcpy(out + (positions ? positions[i] : i) * row_bytes, rows[i], row_bytes);
  }
}

#if defined(__x86_64__)

constexpr int64_t kLine = 64;

// A line per instruction: a tenth faster than memcpy, whose stores are half as wide.
GLT_WIDE void copy_wide(const PickedRows& from, std::byte* out) {
  const auto& [row_bytes, rows, positions, n] = from;
  const RowAhead ahead(row_bytes);
  const int64_t whole = row_bytes / kLine * kLine;
  const __mmask64 rest = (uint64_t{1} << (row_bytes - whole)) - 1;
  for (int64_t i = 0; i < std::min(ahead.rows, n); ++i) ahead.fetch(rows[i]);
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead.rows < n) ahead.fetch(rows[i + ahead.rows]);
    const std::byte* row = rows[i];
    std::byte* to = out + (positions ? positions[i] : i) * row_bytes;
    for (int64_t b = 0; b < whole; b += kLine) _mm512_storeu_si512(to + b, _mm512_loadu_si512(row + b));
    _mm512_mask_storeu_epi8(to + whole, rest, _mm512_maskz_loadu_epi8(rest, row + whole));
  }
}

// So many lines at a time, while there are: they are under way together before the stores take the buffers they wait
// in.
template <int kLines>
GLT_WIDE inline void stream_lines(const std::byte*& from, const std::byte* end, std::byte*& out) {
  for (; end - from >= kLines * kLine; from += kLines * kLine, out += kLines * kLine) {
    __m512i lines[kLines];
    for (int i = 0; i < kLines; ++i) lines[i] = _mm512_loadu_si512(from + i * kLine);
    for (int i = 0; i < kLines; ++i) _mm512_stream_si512(reinterpret_cast<__m512i*>(out + i * kLine), lines[i]);
  }
}

// Past the caches: memory is not read for lines that are overwritten as a whole. Only whole lines go this way: rows
// that end inside one leave it to the next row, so with positions no row may.
GLT_WIDE void copy_streamed(const PickedRows& from, std::byte* out) {
  const auto& [row_bytes, rows, positions, n] = from;
  const RowAhead ahead(row_bytes);
  alignas(kLine) std::byte line[kLine];
  std::byte* to = out;
  int64_t filled = 0, before_first_line = -reinterpret_cast<intptr_t>(out) & (kLine - 1);
  for (int64_t i = 0; i < std::min(ahead.rows, n); ++i) ahead.fetch(rows[i]);
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead.rows < n) ahead.fetch(rows[i + ahead.rows]);
    const std::byte* row = rows[i];
    const std::byte* const end = row + row_bytes;
    if (positions) to = out + positions[i] * row_bytes;
    if (before_first_line > 0) {
      const int64_t bytes = std::min(before_first_line, row_bytes);
      std::memcpy(to, row, bytes);
      to += bytes, row += bytes, before_first_line -= bytes;
    }
    if (filled > 0) {
      const int64_t bytes = std::min(kLine - filled, end - row);
      std::memcpy(line + filled, row, bytes);
      filled += bytes, row += bytes;
      if (filled == kLine) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_load_si512(line));
        to += kLine, filled = 0;
      }
    }
    stream_lines<8>(row, end, to);
    stream_lines<4>(row, end, to);
    stream_lines<1>(row, end, to);
    if (row < end) {
      filled = end - row;
      std::memcpy(line, row, filled);
    }
  }
  std::memcpy(to, line, filled);
  _mm_sfence();  // before any other thread is told that the rows are there
}

// Less stays in a cache until it is read. Of 16 MB, the gather and a read of what it wrote take as long either way; of
// 54 MB they take 12% less past the caches, the gather alone 17%, on a Zen 4.
constexpr int64_t kStreamedBytes = int64_t{16} << 20;

bool is_wide() {
  static const bool is = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  return is;
}

#endif

// The fastest on this processor, for an output of `total_bytes` at `out`, filled in however many pieces; in order if
// there are no positions.
RowCopy row_copy_for([[maybe_unused]] int64_t row_bytes, [[maybe_unused]] int64_t total_bytes,
                     [[maybe_unused]] bool is_in_order, [[maybe_unused]] const std::byte* out) {
#if defined(__x86_64__)
  const bool ends_in_lines = row_bytes % kLine == 0 && reinterpret_cast<uintptr_t>(out) % kLine == 0;
  if (!is_wide() || row_bytes < kLine) return copy_plain;
  if (total_bytes >= kStreamedBytes && (is_in_order || ends_in_lines)) return copy_streamed;
  return copy_wide;
#endif
  return copy_plain;
}

// By a load and a store each, wherever rows begin.
template <int64_t kBytes>
void copy_elements(const PickedRows& from, std::byte* out) {
  const auto [row_bytes, rows, positions, n] = from;
  for (int64_t i = 0; i < n; ++i) prefetch(rows[i]);
  for (int64_t i = 0; i < n; ++i) std::memcpy(out + (positions ? positions[i] : i) * kBytes, rows[i], kBytes);
}

// Packed rows, each widened on its way; the float32s of a row lie together.
void unpack_picked(const PickedRows& from, const RowFormat& format, std::byte* out) {
  const auto& [row_bytes, rows, positions, n] = from;
  const RowUnpack unpack = row_unpack_for(format.packing);
  const int64_t out_bytes = format.out_bytes(row_bytes);
  const RowAhead ahead(row_bytes);
  for (int64_t i = 0; i < std::min(ahead.rows, n); ++i) ahead.fetch(rows[i]);
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead.rows < n) ahead.fetch(rows[i + ahead.rows]);
    unpack(rows[i], format.num_columns, reinterpret_cast<float*>(out + (positions ? positions[i] : i) * out_bytes));
  }
}

void copy_picked(const PickedRows& from, const RowFormat& format, RowCopy copy, std::byte* out) {
  if (format.packing != Packing::kNone) return unpack_picked(from, format, out);
  switch (from.row_bytes) {
    case 0:
      return;  // nothing to copy, but the ids have been checked
    case 1:
      return copy_elements<1>(from, out);
    case 2:
      return copy_elements<2>(from, out);
    case 4:
      return copy_elements<4>(from, out);
    case 8:
      return copy_elements<8>(from, out);
    default:
      return copy(from, out);
  }
}

// Where the rows of ids [first, last) lie, which are all in range.
void find_rows(const RowSource& from, int64_t row_bytes, int64_t first, int64_t last, const std::byte** row) {
  const int64_t n = last - first;
  const auto id_of = [&](int64_t i) { return from.ids ? from.ids[first + i] : first + i; };
  if (from.row_of)
    for (int64_t i = 0; i < n; ++i) {
      require_index(static_cast<uint64_t>(id_of(i)) < static_cast<uint64_t>(from.num_ids), "ids[", first + i,
                    "] = ", id_of(i), " is outside [0, ", from.num_ids, ")");
      prefetch(from.row_of + id_of(i));
    }
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t at = from.row_of ? uint64_t{from.row_of[id_of(i)]}
                                    : static_cast<uint64_t>(id_of(i)) - static_cast<uint64_t>(from.first_id);
    require_index(at < static_cast<uint64_t>(from.num_rows), "ids[", first + i, "] = ", id_of(i), " is row ",
                  static_cast<int64_t>(at), " of ", from.num_rows, ": no such row here");
    row[i] = from.table + static_cast<int64_t>(at) * row_bytes;
  }
}

constexpr int64_t kMinChunkRows = 256, kMaxChunkRows = 2048;

// Some of the ids of a gather, as rows that are in range.
class GatherChunk {
 public:
  GatherChunk(const GatherSpec& spec, RowCopy copy, int64_t first, int64_t last)
      : spec_(spec), copy_(copy), first_(first), n_(last - first) {
    find_rows(spec, spec.row_bytes, first, last, row_);
    if (spec.positions)
      for (int64_t i = 0; i < n_; ++i)
        require_index(spec.positions[first + i] < spec.num_out, "positions[", first + i,
                      "] = ", spec.positions[first + i], " is outside [0, ", spec.num_out, ")");
  }

  void copy() const {
    const uint32_t* positions = spec_.positions ? spec_.positions + first_ : nullptr;
    const int64_t begin = positions ? 0 : first_ * spec_.format.out_bytes(spec_.row_bytes);
    copy_picked({spec_.row_bytes, row_, positions, n_}, spec_.format, copy_, spec_.out + begin);
  }

 private:
  const GatherSpec& spec_;
  const RowCopy copy_;
  int64_t first_, n_;
  const std::byte* row_[kMaxChunkRows];
};

}  // namespace

void number_rows(const RowSource& from, int64_t* row) {
  const std::byte* found[kMaxChunkRows];
  for (int64_t first = 0; first < from.n; first += kMaxChunkRows) {
    const int64_t last = std::min(first + kMaxChunkRows, from.n);
    find_rows(from, 1, first, last, found);
    for (int64_t i = first; i < last; ++i) row[i] = found[i - first] - from.table;
  }
}

void gather_rows(const GatherSpec& spec, int num_threads) {
  if (spec.n == 0) return;
  require(spec.positions || spec.n <= spec.num_out, "out has ", spec.num_out, " rows: expected at least ", spec.n);
  const RowCopy copy = row_copy_for(spec.row_bytes, spec.num_out * spec.row_bytes, !spec.positions, spec.out);
  // At the start of a chunk nothing has been asked for ahead; but threads are to end at the same time.
  const int64_t chunk_rows = std::clamp(spec.n / (8 * std::max(num_threads, 1)), kMinChunkRows, kMaxChunkRows);
  const int64_t worth =
      spec.n * spec.format.out_bytes(spec.row_bytes) / (int64_t{256} << 10);  // a helper costs more than copying less
  for_chunks(spec.n, chunk_rows, std::min<int64_t>(num_threads - 1, worth),
             [&](int64_t first, int64_t last) { GatherChunk(spec, copy, first, last).copy(); });
}

void gather_from(const std::vector<RowSource>& sources, int64_t row_bytes, std::byte* out, int64_t num_out,
                 const RowFormat& format) {
  std::vector<const std::byte*> row(num_out), found(kMaxChunkRows);
  int64_t num_rows = 0;
  for (const RowSource& from : sources) {
    num_rows += from.n;
    for (int64_t first = 0; first < from.n; first += kMaxChunkRows) {
      const int64_t last = std::min(first + kMaxChunkRows, from.n);
      find_rows(from, row_bytes, first, last, found.data());
      for (int64_t i = first; i < last; ++i) {
        const int64_t to = from.positions ? from.positions[i] : i;
        require_index(to < num_out, "positions[", i, "] = ", to, " is outside [0, ", num_out, ")");
        row[to] = found[i - first];
      }
    }
  }
  const auto missing = std::find(row.begin(), row.end(), nullptr);
  require(num_rows == num_out && missing == row.end(), num_rows, " rows of ", sources.size(), " sources for ", num_out,
          " of out: expected one for each, row ", missing - row.begin(), " has none or another has two");
  const RowCopy copy = row_copy_for(row_bytes, num_out * row_bytes, true, out);
  copy_picked({row_bytes, row.data(), nullptr, num_out}, format, copy, out);
}

RowIndex::RowIndex(const int64_t* ids, int64_t n, int64_t num_ids)
    : blocks_((num_ids + 63) / 64), num_ids_(num_ids), num_rows_(n) {
  int64_t before = -1;
  for (int64_t i = 0; i < n; ++i) {
    require(ids[i] > before && ids[i] < num_ids, "ids[", i, "] = ", ids[i],
            ": expected ids that ascend, without duplicates, in [0, ", num_ids, ")");
    before = ids[i];
    blocks_[ids[i] >> 6].bits |= uint64_t{1} << (ids[i] & 63);
  }
  uint64_t rank = 0;
  for (Block& block : blocks_) {
    block.rank = rank;
    rank += std::popcount(block.bits);
  }
}

int64_t RowIndex::split(const int64_t* ids, const uint32_t* positions, int64_t n, int64_t* rows,
                        uint32_t* row_positions, int64_t* rest, uint32_t* rest_positions) const {
  constexpr int64_t kAhead = 32;
  int64_t found = 0, missed = 0;
  for (int64_t i = 0; i < n; ++i) {
    require_index(static_cast<uint64_t>(ids[i]) < static_cast<uint64_t>(num_ids_), "ids[", i, "] = ", ids[i],
                  " is outside [0, ", num_ids_, ")");
    if (i + kAhead < n && static_cast<uint64_t>(ids[i + kAhead]) < static_cast<uint64_t>(num_ids_))
      prefetch(blocks_.data() + (ids[i + kAhead] >> 6));
    const Block& block = blocks_[ids[i] >> 6];
    const uint64_t bit = uint64_t{1} << (ids[i] & 63);
    if (block.bits & bit) {
      rows[found] = static_cast<int64_t>(block.rank + std::popcount(block.bits & (bit - 1)));
      row_positions[found++] = positions[i];
    } else {
      rest[missed] = ids[i];
      rest_positions[missed++] = positions[i];
    }
  }
  return found;
}

}  // namespace glt
