// Which edges of each row a hop may take: all of them, or those up to a time, without those that are excluded.
#pragma once

#include <cstdint>

#include "core/buffer.h"
#include "core/csr.h"
#include "core/exclusions.h"

namespace glt {

// The nodes whose edges are sampled, in order.
struct Rows {
  const int64_t* node;  // [n]
  int64_t n;
  const uint32_t* tree = nullptr;      // [n], the tree of each node in a disjoint batch: trees draw independently
  const int64_t* seed_time = nullptr;  // [n], only edges with time <= this are taken, where edges have times

  Rows slice(int64_t first, int64_t count) const {
    return {node + first, count, tree ? tree + first : nullptr, seed_time ? seed_time + first : nullptr};
  }
};

struct RowSpans {
  Buffer<int64_t> row;                           // [n], row numbers
  Buffer<int64_t> begin;                         // [n], position of the first edge
  Buffer<int64_t> degree;                        // [n], edges from there on, excluded ones among them
  Buffer<int64_t> excluded;                      // their positions, ascending within a row
  Buffer<int64_t> excluded_begin, excluded_end;  // [n], the part of each row in `excluded`; empty without exclusions

  int64_t num_excluded(int64_t i) const { return excluded_end.size() ? excluded_end[i] - excluded_begin[i] : 0; }
  const int64_t* excluded_of(int64_t i) const { return excluded.data() + excluded_begin[i]; }
  int64_t num_eligible(int64_t i) const { return degree[i] - num_excluded(i); }

  // Turns begin + r, for the r-th eligible edge of row i, into the position of that edge, for `count` of them.
  void skip_excluded(int64_t i, int64_t* position, int64_t count) const;
};

// Finds the rows of `rows`. `last` >= 0 leaves the last so many eligible edges of each row. Throws std::out_of_range,
// naming the first offender as `name`[first_index + i], when a node is outside the graph or has no row here.
void find_spans(const CsrView& csr, const Rows& rows, const Exclusions* exclusions, int64_t last, RowSpans& out,
                const char* name, int64_t first_index);

}  // namespace glt
