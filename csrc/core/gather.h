// Rows of a table, picked by id: feature lookup, whatever the dtype and width.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/csr.h"

namespace glt {

struct GatherSpec {
  const std::byte* table;  // [num_rows, row_bytes]
  int64_t num_rows;
  int64_t row_bytes;
  const int64_t* ids;  // [n]; null: 0, 1, 2, ... (a scatter, with positions)
  int64_t n;
  const uint32_t* row_of = nullptr;     // [num_ids], id -> row; null: id - first_id
  int64_t num_ids = 0;                  // with row_of, ids are in [0, num_ids)
  int64_t first_id = 0;                 // the id of row 0
  const uint32_t* positions = nullptr;  // [n], where in `out` each row goes; null: 0, 1, 2, ...
  std::byte* out;                       // [num_out, row_bytes]
  int64_t num_out;
};

// out[positions[i]] = table[row_of[ids[i]]]. Throws std::out_of_range, naming the first offender of a chunk, before
// anything outside the arrays is touched. The same result with any num_threads.
void gather_rows(const GatherSpec& spec, int num_threads);

}  // namespace glt
