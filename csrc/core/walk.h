// Random walks: each goes along one edge of the node that it is at, step after step, many of them side by side.
//
// Walk i draws under the key of tree i of its batch, and step s as hop s: it picks what a hop that draws with
// replacement would, so that all who hold the row of a node pick the same. What is decided beside a row, restarts and
// what node2vec accepts, has draws of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "core/memory.h"
#include "core/read_rows.h"
#include "core/rows.h"
#include "core/sample.h"

namespace glt {

constexpr int64_t kMostSteps = 255;  // hops of a batch

struct WalkSpec {
  uint64_t batch_key = 0;
  int64_t length = 0;             // steps, at most kMostSteps
  std::vector<uint32_t> path{0};  // edge types, over and over: step s goes along path[s % size]
  double restart = 0;             // chance of being at the start again before each traversal of the path
  double back = 1, far = 1;       // node2vec: 1 / p and 1 / q, 0.01 to 100
  bool earlier = false;           // with times: each edge is earlier than the one before it, not only no later

  bool is_second_order() const { return back != 1 || far != 1; }
};

// Throws std::invalid_argument for values that the keys cannot hold or that mean nothing.
void check_walks(const WalkSpec& spec, int64_t num_edge_types);

// Walks under way. Until they are done they ask for draws of rows, rows(), and for whether edges exist, centers() and
// neighbors(). The caller answers.
//
// node2vec (Grover and Leskovec, KDD 2016) by rejection (Yang et al., "KnightKing", SOSP 2019): a candidate x is drawn
// by the law of the first order; it is accepted in proportion to 1 / p if the walk came from x, to 1 if x has an edge
// to where the walk came from, else to 1 / q.
class Walks {
 public:
  // Walks `first_walk`, ..., first_walk + n - 1 from `seed` [n], with times from `seed_time` [n] backwards; null: times
  // play no role. Writes nodes to out [n, length + 1], -1 behind a walk's end.
  void begin(const WalkSpec& spec, const int64_t* seed, const int64_t* seed_time, int64_t n, uint32_t first_walk,
             int64_t* out);

  bool is_done() const { return step_ == spec_->length || node_.size() == 0; }

  // What is asked: num_draws() draws with replacement of each row, along edges of a type.
  Rows rows() const { return {node_.data(), node_.size(), walk_.data(), timed_ ? time_.data() : nullptr}; }
  uint32_t edge_type() const { return spec_->path[step_ % spec_->path.size()]; }
  uint32_t hop() const { return static_cast<uint32_t>(step_); }
  int64_t num_draws() const { return num_draws_; }

  // The answer: count[i] of row i is num_draws(), or 0 of a row without edges; their neighbours, row after row; the
  // times of their edges, or null where edges have none. What is not decided then is asked as edges.
  void take(const uint32_t* count, const int64_t* neighbor, const int64_t* time);

  // Edges whose existence decides: from center to neighbor, along edges of edge_type() as rows are.
  int64_t num_checks() const { return center_.size(); }
  const int64_t* centers() const { return center_.data(); }
  const int64_t* neighbors() const { return neighbor_.data(); }
  void judge(const uint8_t* found);

 private:
  struct Candidate {
    int64_t row, node, check;  // check: which edge decides, -1: it is accepted
    bool if_found;             // whether it is accepted if the edge is there, or if it is not
  };
  int64_t* row_of(int64_t i) { return out_ + (walk_[i] - first_walk_) * (spec_->length + 1); }
  void begin_step();
  void judge_candidates(int64_t i, const int64_t* neighbor);
  void go(int64_t i, int64_t node, int64_t time, bool is_of_edge);

  const WalkSpec* spec_ = nullptr;
  bool timed_ = false;
  uint64_t back_ = 0, near_ = 0, far_ = 0;  // of 2^53: below which numbers candidates are accepted
  const int64_t* seed_time_ = nullptr;
  int64_t* out_ = nullptr;
  uint32_t first_walk_ = 0;
  int64_t step_ = 0, num_draws_ = 1, num_tried_ = 0;
  // Rows that are asked: of the walks that have not made this step.
  Buffer<int64_t> node_, time_;
  Buffer<uint32_t> walk_;
  // Of those that have made it.
  Buffer<int64_t> next_node_, next_time_;
  Buffer<uint32_t> next_walk_;
  Buffer<int64_t> center_, neighbor_;
  std::vector<Candidate> candidates_;
  std::vector<uint8_t> decided_;  // by row
};

// What one thread walks with.
struct WalkScratch {
  ReadScratch read;
  RowSamples samples;
  Walks walks;
  Buffer<uint8_t> found;
};

// Walks along edges that are all here, of `graphs` by edge type; as Walks::begin for the rest. Errors as of
// sample_rows, of seeds.
void walk_here(const std::vector<PartedCsr>& graphs, const WalkSpec& spec, const int64_t* seed,
               const int64_t* seed_time, int64_t n, int num_threads, int64_t* out);

}  // namespace glt
