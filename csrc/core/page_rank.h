// The nodes of highest personalised PageRank around each of many seeds, by forward push (Andersen, Chung and Lang,
// FOCS 2006) in fixed-point arithmetic.
//
// A walk from the seed ends at each node with a given chance, else goes along an edge drawn uniformly; at a node
// without edges it ends. The score of a node is the chance that it ends there. Forward push finds it from below: a node
// holds a residual, the chance of walks that are there and not looked at yet; to push it is to add its share to the
// score, and to pass the rest on to its neighbours. Nodes are pushed in rounds, all those at once whose residual is
// above a bound for each of their edges. All are integers, so that sums do not depend on their order, and neither does
// the result on how rows are divided among partitions, threads and processes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/read_rows.h"
#include "core/relabel.h"

namespace glt {

constexpr int kChanceBits = 60;  // chances are integers, 2^60 is certainty

struct PageRankSpec {
  double stop = 0.15;               // the chance that a walk ends at a node, 1e-4 to 1
  double residual_per_edge = 1e-4;  // what is at most left, 1e-9 to 1
  int64_t num_neighbors = 0;        // how many nodes of highest score, the seed itself left out
};

// Throws std::invalid_argument for values that mean nothing.
void check_page_rank(const PageRankSpec& spec);

// The push from one seed, round after round: the caller tells how many edges nodes have, and where they lead, from
// wherever rows are. Kept between seeds for its memory: up to 100 bytes for each node that received something.
class Push {
 public:
  Push(uint32_t num_types, const PageRankSpec& spec);

  void begin(uint32_t type, int64_t seed);
  bool is_done() const { return touched_.empty(); }

  // A round. First lists the nodes whose degrees are not known: the caller adds them, one for each edge type.
  void list_unknown();
  void add_degree(uint32_t node, int64_t degree) { nodes_[node].degree += degree; }
  // Then lists the nodes that are pushed: the caller passes on what they have, along the edges of each edge type to
  // nodes of type `to`, `i` being the position in the list.
  void list_pushed();
  void pass_on(uint32_t type, int64_t i, uint32_t to, const int64_t* neighbor, int64_t count);

  const std::vector<uint32_t>& listed(uint32_t type) const { return listed_[type]; }
  int64_t id(uint32_t node) const { return nodes_[node].id; }

  // Writes the nodes of `wanted_type`, num_neighbors at most, by falling score, of equal ones the lowest id first;
  // returns how many.
  uint32_t best(uint32_t wanted_type, int64_t* neighbor, double* score);

 private:
  struct Node {
    int64_t id;
    uint32_t type;
    bool is_touched;
    int64_t degree;  // over all edge types; -1: not known yet
    uint64_t score, residual;
  };
  void receive(uint32_t type, int64_t id, uint64_t chance);

  int64_t num_neighbors_;
  uint64_t stop_, least_;
  HashTable table_;  // local numbers by (id, type)
  std::vector<Node> nodes_;
  std::vector<uint32_t> touched_;              // whose residual may be enough
  std::vector<std::vector<uint32_t>> listed_;  // by type
  std::vector<std::vector<uint64_t>> share_;   // by position there, what goes along each edge
  std::vector<uint32_t> best_;
};

// Throws std::invalid_argument unless all types are below num_types.
void check_types(const std::vector<std::pair<uint32_t, uint32_t>>& ends, uint32_t num_types, uint32_t seed_type,
                 uint32_t wanted_type);

// The nodes of `wanted_type` around each seed, in graphs that are all here, with `ends` the node types (from, to) of
// each; as Push::best for each seed: count [n], neighbor and score [n, num_neighbors].
void page_ranks(const std::vector<PartedCsr>& graphs, const std::vector<std::pair<uint32_t, uint32_t>>& ends,
                uint32_t num_types, const PageRankSpec& spec, uint32_t seed_type, uint32_t wanted_type,
                const int64_t* seed, int64_t n, int num_threads, uint32_t* count, int64_t* neighbor, double* score);

}  // namespace glt
