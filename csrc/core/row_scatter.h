// The rows of a table, dealt out to the files of their owners in one sequential read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/block_file.h"
#include "core/csr.h"
#include "core/owner.h"
#include "core/work_items.h"

namespace glt {

// Rows of one length in a file, behind a header.
struct RowFile {
  BlockFile* file;
  int64_t header_bytes;
};

struct ScatterSpec {
  const std::byte* table;  // [n], rows of row_bytes, one every row_stride bytes
  int64_t row_bytes, row_stride;
  int64_t n;
  OwnerArray book;
  std::optional<Ids> ids;      // [n]: row i belongs to the owner of ids[i]; without: to that of first + i
  int64_t first;               // row number of table[0] in the whole table
  int64_t chunk_rows;          // rows dealt with at a time by each thread
  std::vector<RowFile> files;  // by owner
  RowFile* owner_file;         // gets the owner of each row, in the width of the book; null: not wanted
  RowFile* place_file;         // gets the row that each became in its owner's file, uint32; null: not wanted
};

// Appends each row to the file of its owner, in order. filled [num_parts] counts the rows in each file, before and
// after. Throws std::out_of_range if an id is outside the book, std::invalid_argument if a file is full.
void scatter_rows(const ScatterSpec& spec, int64_t* filled, int num_threads, const Tick& tick);

}  // namespace glt
