#include "core/gather.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "core/check.h"
#include "core/prefetch.h"
#include "core/row_copy.h"
#include "core/team.h"

namespace glt {
namespace {

constexpr int64_t kMinChunkRows = 256, kMaxChunkRows = 2048;

class Chunk {
 public:
  Chunk(const GatherSpec& spec, RowCopy copy, int64_t first, int64_t last)
      : spec_(spec), copy_(copy), first_(first), n_(last - first) {
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t id = spec.ids ? spec.ids[first + i] : first + i;
      if (spec.row_of) {
        require_index(static_cast<uint64_t>(id) < static_cast<uint64_t>(spec.num_ids), "ids[", first + i, "] = ", id,
                      " is outside [0, ", spec.num_ids, ")");
        prefetch(spec.row_of + id);
      }
      row_[i] = static_cast<int64_t>(static_cast<uint64_t>(id) - static_cast<uint64_t>(spec.first_id));
    }
    if (spec.row_of)
      for (int64_t i = 0; i < n_; ++i) row_[i] = spec.row_of[row_[i]];
    for (int64_t i = 0; i < n_; ++i)
      require_index(static_cast<uint64_t>(row_[i]) < static_cast<uint64_t>(spec.num_rows), "ids[", first + i,
                    "] = ", spec.ids ? spec.ids[first + i] : first + i, " is row ", row_[i], " of ", spec.num_rows,
                    ": no such row here");
    if (spec.positions)
      for (int64_t i = 0; i < n_; ++i)
        require_index(spec.positions[first + i] < spec.num_out, "positions[", first + i,
                      "] = ", spec.positions[first + i], " is outside [0, ", spec.num_out, ")");
  }

  void copy() const {
    switch (spec_.row_bytes) {
      case 0:
        return;  // nothing to copy, but the ids have been checked
      case 1:
        return copy_elements<uint8_t>();
      case 2:
        return copy_elements<uint16_t>();
      case 4:
        return copy_elements<uint32_t>();
      case 8:
        return copy_elements<uint64_t>();
      default:
        return copy_rows();
    }
  }

 private:
  int64_t out_row(int64_t i) const { return spec_.positions ? spec_.positions[first_ + i] : first_ + i; }

  template <typename T>
  void copy_elements() const {
    const T* table = reinterpret_cast<const T*>(spec_.table);
    T* out = reinterpret_cast<T*>(spec_.out);
    for (int64_t i = 0; i < n_; ++i) prefetch(table + row_[i]);
    for (int64_t i = 0; i < n_; ++i) out[out_row(i)] = table[row_[i]];
  }

  void copy_rows() const {
    const uint32_t* positions = spec_.positions ? spec_.positions + first_ : nullptr;
    std::byte* out = spec_.out + (positions ? 0 : first_ * spec_.row_bytes);
    copy_({spec_.table, spec_.row_bytes, row_, positions, n_}, out);
  }

  const GatherSpec& spec_;
  const RowCopy copy_;
  int64_t first_, n_;
  int64_t row_[kMaxChunkRows];
};

}  // namespace

void gather_rows(const GatherSpec& spec, int num_threads) {
  if (spec.n == 0) return;
  require(spec.positions || spec.n <= spec.num_out, "out has ", spec.num_out, " rows: expected at least ", spec.n);
  const RowCopy copy = row_copy_for(spec.row_bytes, spec.num_out * spec.row_bytes, !spec.positions, spec.out);
  // At the start of a chunk nothing has been asked for ahead; but threads are to end at the same time.
  const int64_t chunk_rows = std::clamp(spec.n / (8 * std::max(num_threads, 1)), kMinChunkRows, kMaxChunkRows);
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (int64_t first; (first = next.fetch_add(chunk_rows)) < spec.n;)
        Chunk(spec, copy, first, std::min(spec.n, first + chunk_rows)).copy();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next.store(spec.n);
    }
  };
  const int64_t worth = spec.n * spec.row_bytes / (int64_t{256} << 10);  // a helper costs more than copying less
  run_with_helpers(static_cast<int>(std::min<int64_t>(num_threads - 1, worth)), work, work);
  if (error) std::rethrow_exception(error);
}

}  // namespace glt
