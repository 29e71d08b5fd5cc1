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

#include "core/memory.h"
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

// One round after the other for one seed at a time; kept between seeds for its memory.
class Push {
 public:
  // `ends` are the node types (from, to) of each graph.
  Push(const std::vector<PartedCsr>& graphs, const std::vector<std::pair<uint32_t, uint32_t>>& ends, uint32_t num_types,
       const PageRankSpec& spec);

  // Writes the nodes of `wanted_type` around a seed, num_neighbors at most, by falling score, of equal ones the lowest
  // id first; returns how many. `index` is the seed's position, for errors.
  uint32_t run(uint32_t seed_type, int64_t seed, uint32_t wanted_type, int64_t index, int64_t* neighbor, double* score);

 private:
  struct Node {
    int64_t id;
    uint32_t type;
    bool is_touched;
    int64_t degree;  // over all edge types; -1: not known yet
    uint64_t score, residual;
  };
  void receive(uint32_t type, int64_t id, uint64_t chance);
  void find_degrees(const char* name, int64_t index);
  void push_round();
  // Has read(csr, rows, ...) read the edges of by_type_'s nodes, and calls each(i, neighbours, count) of node i there.
  template <typename Read, typename Each>
  void read_rows(uint32_t edge_type, const char* name, int64_t index, const Read& read, const Each& each);

  const std::vector<PartedCsr>& graphs_;
  const std::vector<std::pair<uint32_t, uint32_t>>& ends_;
  int64_t num_neighbors_;
  uint64_t stop_, least_;
  HashTable table_;  // local numbers by (id, type)
  std::vector<Node> nodes_;
  std::vector<uint32_t> touched_;               // whose residual may be enough
  std::vector<std::vector<uint32_t>> by_type_;  // those that are read
  std::vector<std::vector<uint64_t>> share_;    // by position there, what goes along each edge
  std::vector<uint32_t> best_;
  Buffer<int64_t> asked_;
  ReadScratch scratch_;
  RowSamples rows_;
};

// As Push::run for each seed: count [n], neighbor and score [n, num_neighbors].
void page_ranks(const std::vector<PartedCsr>& graphs, const std::vector<std::pair<uint32_t, uint32_t>>& ends,
                uint32_t num_types, const PageRankSpec& spec, uint32_t seed_type, uint32_t wanted_type,
                const int64_t* seed, int64_t n, int num_threads, uint32_t* count, int64_t* neighbor, double* score);

}  // namespace glt
