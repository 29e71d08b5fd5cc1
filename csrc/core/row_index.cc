#include "core/row_index.h"

#include <bit>

#include "core/check.h"
#include "core/prefetch.h"

namespace glt {

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
