// Which rows a small table has, out of many ids: a bitmap with ranks (Jacobson, FOCS 1989), a quarter of a byte per id,
// so that a lookup is one memory access, mostly in cache.
#pragma once

#include <cstdint>
#include <vector>

namespace glt {

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
