// Copying picked rows of a table to one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace glt {

struct PickedRows {
  const std::byte* table;
  int64_t row_bytes;
  const int64_t* rows;        // [n]
  const uint32_t* positions;  // [n], which row of the output each becomes; null: 0, 1, 2, ...
  int64_t n;
};

using RowCopy = void (*)(const PickedRows& from, std::byte* out);

// The fastest on this processor, for an output of `total_bytes` at `out`, filled in however many pieces; in order if
// there are no positions.
RowCopy row_copy_for(int64_t row_bytes, int64_t total_bytes, bool is_in_order, const std::byte* out);

}  // namespace glt
