// Rows of a table, picked by id: feature lookup, whatever the dtype and width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/csr.h"
#include "core/packed_rows.h"

namespace glt {

// Rows of a table, by id, and where they go.
struct RowSource {
  const std::byte* table;  // [num_rows, row_bytes]
  int64_t num_rows;
  const int64_t* ids;  // [n]; null: 0, 1, 2, ... (a scatter, with positions)
  int64_t n;
  const uint32_t* row_of = nullptr;     // [num_ids], id -> row; null: id - first_id
  int64_t num_ids = 0;                  // with row_of, ids are in [0, num_ids)
  int64_t first_id = 0;                 // the id of row 0
  const uint32_t* positions = nullptr;  // [n], where in `out` each row goes; null: 0, 1, 2, ...
};

struct GatherSpec : RowSource {
  int64_t row_bytes;
  std::byte* out;  // [num_out, format.out_bytes(row_bytes)]
  int64_t num_out;
  RowFormat format = {};  // of the table; packed rows become float32
};

// out[positions[i]] = table[row_of[ids[i]]]. Throws std::out_of_range, naming the first offender of a chunk, before
// anything outside the arrays is touched. The same result with any num_threads.
void gather_rows(const GatherSpec& spec, int num_threads);

// The same of several tables of one format that fill `out` together: written once, from its beginning to its end. With
// gaps left for later the same rows took 1.8 times as long (512 bytes, Zen 4). Throws std::invalid_argument, before
// anything is written, unless each row of `out` is of one source.
void gather_from(const std::vector<RowSource>& sources, int64_t row_bytes, std::byte* out, int64_t num_out,
                 const RowFormat& format = {});

// row[i] = which row that of ids[i] is. Positions are not looked at, and nothing is read at `table`. Throws
// std::out_of_range, naming the first id that has none.
void number_rows(const RowSource& from, int64_t* row);

// Which rows a small table has, out of many ids: a bitmap with ranks (Jacobson, FOCS 1989), a quarter of a byte per id,
// so that a lookup is one memory access, mostly in cache.
class RowIndex {
 public:
  // Row i of the table is that of id ids[i]. Throws std::invalid_argument naming the first of ids [n] that does not
  // ascend or is outside [0, num_ids).
  RowIndex(const int64_t* ids, int64_t n, int64_t num_ids);

  int64_t num_rows() const { return num_rows_; }
  int64_t num_ids() const { return num_ids_; }

  // Sorts ids [n] into those with a row, as rows with positions, and the others, as ids with positions, both in order;
  // returns how many have one. Outputs have room for n. Throws std::out_of_range naming an id outside [0, num_ids).
  int64_t split(const int64_t* ids, const uint32_t* positions, int64_t n, int64_t* rows, uint32_t* row_positions,
                int64_t* rest, uint32_t* rest_positions) const;

 private:
  struct Block {
    uint64_t bits = 0;  // of 64 ids, whether they have a row
    uint64_t rank = 0;  // rows of all ids before
  };
  std::vector<Block> blocks_;
  int64_t num_ids_, num_rows_;
};

}  // namespace glt
