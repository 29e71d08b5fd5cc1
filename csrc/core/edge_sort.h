// Sorting edges into rows when neither edges nor rows fit into memory: an external bucket sort.
//
// Pass 1 counts the edges of each row. Rows that follow each other form buckets that fit into memory; pass 2 reads the
// edges once, front to back, and appends to each bucket, in a scratch file, a record of everything that is known of an
// edge; pass 3 reads bucket by bucket, sorts it by counting, and writes it to the files of its partition. All input
// and output is sequential, or in pieces of many KiB. A row that alone exceeds a bucket is in order already when it
// comes from the scratch file (but for its times, which are merged), so it is streamed.
#pragma once

#include <cstdint>

#include "core/edge_records.h"
#include "core/owner.h"
#include "core/part_graphs.h"
#include "core/work_items.h"

namespace glt {

// How much memory and scratch the sort takes.
struct SortPlan {
  int64_t record_bytes;       // of an edge in the scratch file
  int64_t edge_bytes;         // of an edge while its bucket is sorted, everything counted
  int64_t bucket_edges;       // edges that a bucket may hold
  int64_t thread_bytes;       // memory of each thread
  int64_t scratch_bytes = 0;  // 0: all edges fit into one bucket

  // thread_bytes is what each thread may use. More is taken where pieces of the scratch file would become shorter than
  // 16 KiB: from 275 GB of records on at 64 MiB, memory grows with the square root of their size.
  SortPlan(const RecordLayout& record, int64_t num_edges, int64_t indices_width, int64_t edge_ids_width,
           int64_t thread_bytes);
};

// Where rows go: the rows of all partitions, one partition after the other.
struct RowOrder {
  const uint32_t* position;   // [num_nodes], by node
  OwnerArray owner;           // [num_nodes], by node
  OwnerArray neighbor_owner;  // [num_neighbors], by neighbour
};

// Pass 1: fills indptr [num_nodes + 1], by position, and returns the number of edges whose ends have different owners.
// Throws std::out_of_range if an id is out of range.
int64_t count_rows(const EdgeList& edges, const RowOrder& order, int64_t* indptr, int num_threads, const Tick& tick);

// Passes 2 and 3: writes all arrays of `graphs`. The same bytes with any number of threads and any plan.
//
// `indptr` comes from count_rows; it serves as the cursor and is restored. `scratch` is a file of scratch_bytes; the
// edges of a row keep their input order, and are written once more ordered by time, stably, where there are times.
void sort_edges(const EdgeList& edges, const RowOrder& order, const SortPlan& plan, int64_t indices_width,
                int64_t edge_ids_width, int64_t* indptr, PartGraphs& graphs, int scratch, int num_threads,
                const Tick& tick);

}  // namespace glt
