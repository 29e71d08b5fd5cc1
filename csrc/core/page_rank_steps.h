// Personalised PageRank around many seeds, whose rows the caller answers from wherever they are, step by step.
//
// Several seeds are pushed side by side, round by round, so that what they ask for is asked at once; when one is done,
// the next seed takes its place. Degrees and rows that came are kept until all are done: none is asked for twice. Rows
// are asked for only of nodes that are pushed: of one with too many edges for what it holds the degree is enough, and
// of one with over 10^9, which is never pushed, any number above that. Each seed is pushed as if it were alone, so that
// the result is that of page_ranks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/csr.h"
#include "core/memory.h"
#include "core/page_rank.h"
#include "core/relabel.h"

namespace glt {

// Memory: what Push takes for kSeedsTogether seeds; up to 80 bytes for each node that a seed reached with more than the
// least residual; and 32 for each row that came and has edges, and 8 to 12 for each of these.
class PageRankSteps {
 public:
  static constexpr int64_t kSeedsTogether = 64;

  // Writes as page_ranks does. `ends` are the node types (from, to) of each edge type.
  PageRankSteps(std::vector<std::pair<uint32_t, uint32_t>> ends, uint32_t num_types, const PageRankSpec& spec,
                uint32_t seed_type, uint32_t wanted_type, std::vector<int64_t> seed, uint32_t* count, int64_t* neighbor,
                double* score);

  bool is_done() const { return step_ == Step::kDone; }
  // What is asked of asked(t), along each edge type that leads from type t: rows, or only numbers of edges.
  bool wants_rows() const { return step_ == Step::kPassOn; }
  const std::vector<int64_t>& asked(uint32_t type) const { return asked_.at(type); }

  // A part of the answer: the edges along a type of the nodes at position [n] of those asked, and where they lead, node
  // after node; no neighbours where only numbers are asked. Throws std::invalid_argument, before anything is kept, of
  // an answer that was not asked for.
  void take(uint32_t edge_type, const uint32_t* position, const uint32_t* count, int64_t n, Ids neighbor,
            int64_t num_edges);
  // Once all is answered: pushes until more is asked, or all are done.
  void go_on();

 private:
  enum class Step : uint8_t { kBegin, kAddDegrees, kPassOn, kDone };
  static constexpr int64_t kNone = -1, kNotAsked = -2;
  struct Known {
    int64_t degree;  // over all edge types
    int64_t row;     // the first in rows_, kNone or kNotAsked
  };
  struct Row {  // of one edge type, that has edges
    int64_t begin, count;
    int64_t next;  // of the node, or kNone
    uint32_t edge_type;
  };
  struct Place {  // of one seed under way
    Push push;
    int64_t seed;  // its position; -1: none
  };

  uint32_t known(uint32_t type, int64_t id);
  void require_all_answered() const;
  // Calls each(push, type, i, number in known_) of all nodes that are listed.
  template <typename Each>
  void for_listed(const Each& each);
  void ask(uint32_t type, int64_t id, uint32_t known);
  bool is_anything_asked() const;
  void begin_seeds();
  void add_degrees();
  void pass_on();

  const std::vector<std::pair<uint32_t, uint32_t>> ends_;
  const PageRankSpec spec_;
  const uint32_t seed_type_, wanted_type_;
  const std::vector<int64_t> seed_;
  uint32_t* count_;
  int64_t* neighbor_;
  double* score_;
  Step step_ = Step::kBegin;
  int64_t next_ = 0;  // seed
  std::vector<Place> places_;

  HashTable table_;  // numbers in known_ by (id, type)
  std::vector<Known> known_;
  std::vector<Row> rows_;
  std::vector<uint8_t> has_edges_;     // by node type, whether an edge type leads from it
  std::vector<Buffer<int64_t>> kept_;  // neighbours, by edge type

  std::vector<std::vector<int64_t>> asked_;         // by node type
  std::vector<std::vector<uint32_t>> asked_known_;  // the same as numbers in known_
  std::vector<std::vector<uint8_t>> is_answered_;   // by edge type
  std::vector<int64_t> num_answered_;
};

}  // namespace glt
