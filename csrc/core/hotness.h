// How likely nodes are to be in a batch, without sampling one: probabilities passed along edges, hop after hop.
//
// Notation: found(v, i) is the probability that node v has been discovered by hop i. A node is expanded at the hop that
// discovers it, once, so that the probability that it ever takes the edge to u is a sum over hops:
//   taken(v -> u) = sum over hops j of (found(v, j) - found(v, j - 1)) * chance that an expansion at hop j picks the
//   edge
// and, if the edges to u were taken independently of each other,
//   1 - found(u, i + 1) = (1 - found(u, 0)) * product over v of (1 - taken(v -> u)).
//
// They are not where v owes its discovery to u: a path that turns back discovers nothing. So, where an edge u -> v
// exists too, taken(v -> u) is computed as if u were not there (a cavity, as in belief propagation): u's factor is
// divided out of found(v). Parallel edges are taken at the same time or not at all, as far as they are likely; a
// repeated one counts as what it adds to the first. Longer cycles are neglected, which overestimates what many of them
// lead to.
#pragma once

#include <cstdint>

#include "core/csr.h"
#include "core/hotness_rules.h"

namespace glt {

// One edge type at one hop. All nodes have rows.
struct HotnessHop {
  const CsrView* csr;
  const int64_t* num_neighbors;  // [hop + 1], edges per node at each hop; -1: all
  bool weighted = false;         // draws are proportional to the weights of csr
  bool replace = false;          // drawn with replacement
  int64_t hop;                   // from 0
  const float* expanded;         // [num_nodes, num_columns]: found(v, i) in column i, filled up to column `hop`
  const float* neighbor;         // [num_neighbor_nodes, num_columns], likewise, of the type of neighbours
  int64_t num_columns;           // above `hop`
  // Bits [(num_edges + 63) / 64] of find_repeated and of find_mutual, with the edges that may lead back; null: none.
  const uint64_t* repeated;
  const uint64_t* mutual;
  const CsrView* back;
  const int64_t* back_neighbors;  // [hop + 1], num_neighbors of `back`
};

// Adds, for every edge v -> u of `at`, -log(1 - taken(v -> u)) to doubt[u], in units of kDoubtUnit.
void add_doubt(const HotnessHop& at, int64_t* doubt, int num_threads);

// Sets bit e of mutual [(num_edges + 63) / 64] where edge e, v -> u of csr, has an edge u -> v in `back`; clears
// others. Needs 4 bytes per edge of `back` and 4 bytes per node and thread meanwhile.
void find_mutual(const CsrView& csr, const CsrView& back, uint64_t* mutual, int num_threads);

// Sets bit e of repeated [(num_edges + 63) / 64] where an edge before e has the same ends; clears others. Needs 4 bytes
// per node and thread meanwhile.
void find_repeated(const CsrView& csr, uint64_t* repeated, int num_threads);

}  // namespace glt
