// Fennel: nodes stream past once, and each goes where its neighbours are, unless that is crowded.
//
// Tsourakakis, Gkantsidis, Radunovic, Vojnovic, "FENNEL: streaming graph partitioning for massive scale graphs", WSDM
// 2014, with gamma = 3/2: a partition's score is the number of the node's neighbours in it minus the marginal cost of
// its load, penalty * sqrt(load / mean load); where edges are balanced, plus the same of the edges of each kind, times
// the node's own over the mean of all kinds together. Further passes over the same stream, which know where the
// neighbours still to come were put by the last one, are the restreaming of Nishimura and Ugander, KDD 2013.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "core/csr.h"

namespace glt {

// Neighbours in both directions; parallel edges count as often as they are there.
struct Adjacency {
  const int64_t* indptr;  // [num_nodes + 1]
  Ids indices;            // [indptr[num_nodes]], each in [0, num_nodes)
  int64_t num_nodes;
};

// Edges that go where nodes go: of some nodes, the first of which is `begin`, and of some kinds, the first of which is
// `first_kind`; other nodes have none of these kinds.
struct OwnedEdges {
  int64_t begin;
  int64_t end;
  int64_t first_kind;
  int64_t num_kinds;
  const int64_t* count;  // [end - begin, num_kinds]
};

// What every partition has its share of: the nodes of each label, and perhaps the edges of each kind that those have.
struct Balance {
  int64_t num_parts;
  const uint16_t* label;  // [num_nodes], each below num_labels; null: all are 0
  int64_t num_labels;
  const int64_t* label_cap;  // [num_labels], most nodes of a label in a partition, num_parts of which hold them all
  std::vector<OwnedEdges> edges;  // of all nodes, in order; empty: not balanced
  int64_t num_kinds;
  const int64_t* edge_cap;  // [num_kinds, num_labels], most edges of a kind that nodes of a label have in a partition,
                            // kept where a partition has room for nodes and edges
};

// The partition of each node, in the width of a book.
using Owners = std::variant<uint8_t*, uint16_t*>;

// Assigns every node once. In the first pass, of which `owner` [num_nodes] is output alone, nodes of large degrees come
// first, by powers of eight: they are spread before the others gather around them. In later passes, which start from
// `owner`, nodes come by id. Ties are broken by `key`. Returns the number of edges cut. Memory: 16 bytes for each label
// and partition, and each kind of edges of these, a bit for each node. Throws std::out_of_range naming a label or an
// owner out of range.
int64_t fennel_pass(const Adjacency& graph, const Balance& balance, double penalty, bool is_first, uint64_t key,
                    Owners owner);

// Moves nodes out of partitions that exceed label_cap, then out of those that have more than node_cap nodes of all
// labels together, and, where edges are balanced, nodes out of those that exceed the edge_cap of theirs; each to the
// partition with room that has the best score. num_parts times node_cap are all nodes at least. Where no partition has
// room for a node and its edges, the caps of nodes are kept and edge_cap is not. Returns how many moves there were.
int64_t move_overfull(const Adjacency& graph, const Balance& balance, int64_t node_cap, double penalty, uint64_t key,
                      Owners owner);

}  // namespace glt
