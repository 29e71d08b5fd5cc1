// One-hop neighbour sampling: which edges of a node a batch takes.
//
// The picks of a node are a function of (batch key, hop, edge type, node id) and of its row alone. All who hold the
// row compute the same picks, so a batch does not depend on how the graph is partitioned or on threads.
#pragma once

#include <cstdint>

#include "core/csr.h"
#include "core/memory.h"
#include "core/numbers.h"
#include "core/pick_rules.h"
#include "core/rng.h"
#include "core/rows.h"

namespace glt {

struct HopSpec {
  int64_t num_neighbors;  // edges per node; -1: all of them
  bool replace = false;   // true: exactly num_neighbors draws for every node that has an edge
  uint64_t batch_key = 0;
  uint32_t hop = 0;                        // < 256
  uint32_t edge_type = 0;                  // < 65535
  bool with_edge = true;                   // false: leaves RowSamples::edge empty
  bool latest_only = false;                // of edges with times, only the num_neighbors latest that may be taken
  const Exclusions* exclusions = nullptr;  // edges that are never taken; null: none
  int64_t time_window = -1;                // of edges with times, only those no more than this before the seed; -1: all
  int64_t half_life = 0;                   // edges with times are drawn by age, see age.h; 0: each equally likely
  bool by_number = false;                  // rows take the neighbours of the lowest numbers, see numbers.h
  uint64_t number_key = 0;                 // of these numbers
  bool with_time = false;                  // RowSamples::edge has the times of edges; stays empty where they have none
};

// Throws std::invalid_argument for values that the keys cannot hold or that mean nothing.
void check_spec(const HopSpec& spec);

// What node i of `rows` draws under.
inline uint64_t key_of(const Rows& rows, int64_t i, const HopSpec& spec) {
  return rows.tree ? tree_key(spec.batch_key, rows.tree[i]) : spec.batch_key;
}

inline NodeDraws draws_of(const Rows& rows, int64_t i, const HopSpec& spec) {
  return {key_of(rows, i, spec), spec.hop, spec.edge_type, static_cast<uint64_t>(rows.node[i])};
}

// The sampled edges of consecutive nodes, row after row.
struct RowSamples {
  Buffer<uint32_t> count;    // [num_nodes]
  Buffer<int64_t> neighbor;  // [sum of count]
  Buffer<int64_t> edge;      // [sum of count], or empty
  void clear() {
    count.clear();
    neighbor.clear();
    edge.clear();
  }
  void end_use() {
    count.end_use();
    neighbor.end_use();
    edge.end_use();
  }
};

constexpr int64_t kRunSlack = 8;  // elements behind the end that write_run may overwrite

// Writes out[j] = value(j) for j < n, and something up to out[kRunSlack - 1]: runs are mostly short, and a fixed number
// of stores costs less than leaving a loop at an unpredictable time.
template <typename T, typename Value>
inline void write_run(T* out, int64_t n, const Value& value) {
  for (int64_t j = 0; j < kRunSlack; ++j) out[j] = value(j);
  for (int64_t j = kRunSlack; j < n; ++j) out[j] = value(j);
}

// What a thread reads rows with, one chunk after the other: in its own caches, unlike samples, which others consume.
struct RowScratch {
  Buffer<int64_t> position;  // where in the edge arrays a pick is
  RowSpans spans;
  LowestNumbers lowest;

  void end_use() {  // of what grows with a row; the others have at most kChunkRows times a constant
    position.end_use();
    spans.excluded.end_use();
    lowest.end_use();
  }
};

// Appends the samples of `rows`, kChunkRows at most, to `out`. Without replacement by Floyd's algorithm (Bentley &
// Floyd, CACM 30(9), 1987): exactly min(k, degree) draws, every subset equally likely. Throws std::out_of_range, naming
// the first offender as `name`[first_index + i], when a node is outside the graph or has no row here.
void sample_rows(const CsrView& csr, const Rows& rows, const HopSpec& spec, RowScratch& scratch, RowSamples& out,
                 const char* name, int64_t first_index);

}  // namespace glt
