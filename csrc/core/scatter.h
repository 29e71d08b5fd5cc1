// Rows and new ids of edges, dealt out to the files of their owners in one sequential read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/block_file.h"
#include "core/csr.h"
#include "core/threads.h"

namespace glt {

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
void scatter_rows(const ScatterSpec& spec, int64_t* filled, int num_threads, const Progress& progress);

// New ids for edges, of which each partition owns a range: the maps from the old ids to them and back, in one pass.
struct EdgeNumberSpec {
  Ids row;  // [num_edges], the node that an edge belongs to; may be mapped, and is read front to back
  int64_t num_edges;
  OwnerArray owner;       // by node
  const int64_t* offset;  // [num_parts + 1], the new ids of each partition
  RowFile old_ids;        // gets the old id of each new one
  RowFile new_ids;        // gets the new id of each old one
  int64_t id_width;       // of both, 4 or 8 bytes
  int64_t chunk_edges;    // edges dealt with at a time by each thread, which takes 4 + 2 * id_width bytes for each
};

// Numbers the edges of each partition in their order, from the begin of its range. Throws std::out_of_range if a node
// is out of range, std::invalid_argument if the edges of a partition are not as many as its ids.
void number_edges(const EdgeNumberSpec& spec, int num_threads, const Progress& progress);

}  // namespace glt
