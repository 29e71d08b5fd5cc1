// Copying picked rows, one after the other, to one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace glt {

// Copies rows[0], ..., rows[n - 1] of a table to `out`, which has room for n rows.
using RowCopy = void (*)(const std::byte* table, int64_t row_bytes, const int64_t* rows, int64_t n, std::byte* out);

// The fastest on this processor; `total_bytes` is what one caller copies, in however many pieces.
RowCopy row_copy_for(int64_t row_bytes, int64_t total_bytes);

}  // namespace glt
