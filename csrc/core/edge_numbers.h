// New ids for edges, of which each partition owns a range: the maps from the old ids to them and back, in one pass.
#pragma once

#include <cstdint>

#include "core/csr.h"
#include "core/owner.h"
#include "core/row_scatter.h"
#include "core/work_items.h"

namespace glt {

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
void number_edges(const EdgeNumberSpec& spec, int num_threads, const Tick& tick);

}  // namespace glt
