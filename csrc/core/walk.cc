#include "core/walk.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "core/check.h"
#include "core/rng.h"
#include "core/threads.h"

namespace glt {
namespace {

constexpr double kWhole = 9007199254740992.0;  // 2^53: chances are multiples of its inverse
constexpr int64_t kFirstDraws = 4;             // candidates of a step of the second order that are drawn at once
constexpr int64_t kMostDraws = 1 << 20;        // with chances of at least 10^-4, this many are never rejected

uint64_t part_of_whole(double chance) {
  return static_cast<uint64_t>(chance * kWhole);
}

// What a walk decides at a step, beside what it picks.
NodeDraws decisions(const WalkSpec& spec, uint32_t walk, int64_t step) {
  return {derive_key(spec.batch_key, Purpose::kWalk, 0, walk), static_cast<uint32_t>(step), 0, 0};
}

}  // namespace

void check_walks(const WalkSpec& spec, int64_t num_edge_types) {
  require(spec.length >= 0 && spec.length <= kMostSteps, "length = ", spec.length, ": expected 0 to ", kMostSteps);
  require(!spec.path.empty(), "path is empty: expected at least one edge type");
  for (const uint32_t edge_type : spec.path)
    require(edge_type < num_edge_types && edge_type < 65535, "path has edge type ", edge_type, ": expected below ",
            num_edge_types);
  require(spec.restart >= 0 && spec.restart <= 1, "restart = ", spec.restart, ": expected 0 to 1");
  for (const double weight : {spec.back, spec.far})
    require(weight >= 0.01 && weight <= 100, "a weight of node2vec is ", weight, ": expected 0.01 to 100");
  require(!spec.is_second_order() || (spec.restart == 0 && spec.path.size() == 1),
          "walks of node2vec have neither restarts nor paths of several edge types");
}

void Walks::begin(const WalkSpec& spec, const int64_t* seed, const int64_t* seed_time, int64_t n, uint32_t first_walk,
                  int64_t* out) {
  spec_ = &spec;
  timed_ = seed_time != nullptr;
  seed_time_ = seed_time;
  out_ = out;
  first_walk_ = first_walk;
  step_ = 0;
  const double most = std::max({1.0, spec.back, spec.far});
  back_ = part_of_whole(spec.back / most);
  near_ = part_of_whole(1 / most);
  far_ = part_of_whole(spec.far / most);
  std::fill_n(out, n * (spec.length + 1), int64_t{-1});
  node_.clear();
  walk_.clear();
  time_.clear();
  for (int64_t i = 0; i < n; ++i) {
    out[i * (spec.length + 1)] = seed[i];
    node_.push_back(seed[i]);
    walk_.push_back(first_walk + static_cast<uint32_t>(i));
    if (timed_) time_.push_back(seed_time[i]);
  }
  begin_step();
}

void Walks::begin_step() {
  candidates_.clear();
  next_node_.clear();
  next_walk_.clear();
  next_time_.clear();
  center_.clear();
  neighbor_.clear();
  num_tried_ = 0;
  num_draws_ = spec_->is_second_order() && step_ > 0 ? kFirstDraws : 1;
  if (is_done() || spec_->restart == 0 || step_ == 0 || step_ % static_cast<int64_t>(spec_->path.size()) != 0) return;
  const uint64_t below = part_of_whole(spec_->restart);
  for (int64_t i = 0; i < node_.size(); ++i) {
    if (decisions(*spec_, walk_[i], step_)(0) >> 11 >= below) continue;
    node_[i] = *row_of(i);
    if (timed_) time_[i] = seed_time_[walk_[i] - first_walk_];
  }
}

void Walks::take(const uint32_t* count, const int64_t* neighbor, const int64_t* time) {
  center_.clear();
  neighbor_.clear();
  candidates_.clear();
  decided_.assign(node_.size(), 0);
  for (int64_t i = 0; i < node_.size(); neighbor += count[i], time += time ? count[i] : 0, ++i) {
    require(count[i] == 0 || count[i] == num_draws_, "a row of walks has ", count[i], " draws: expected 0 or ",
            num_draws_);
    if (count[i] == 0)
      decided_[i] = 1;  // the walk ends
    else if (num_draws_ == 1)
      go(i, neighbor[0], time ? time[0] : timed_ ? time_[i] : 0, time != nullptr);
    else
      judge_candidates(i, neighbor);
  }
  if (center_.size() == 0) judge(nullptr);
}

// Candidates of row i, up to the first that is accepted whatever edges there are.
void Walks::judge_candidates(int64_t i, const int64_t* neighbor) {
  const int64_t before = row_of(i)[step_ - 1];
  NodeDraws decide = decisions(*spec_, walk_[i], step_);
  for (int64_t j = num_tried_; j < num_draws_; ++j) {
    const uint64_t number = decide(static_cast<uint32_t>(j)) >> 11;
    const int64_t x = neighbor[j];
    const uint64_t sure = x == before ? back_ : std::min(near_, far_),
                   ever = x == before ? back_ : std::max(near_, far_);
    if (number < sure) {
      candidates_.push_back({i, x, -1, true});
      return;
    }
    if (number >= ever) continue;
    candidates_.push_back({i, x, center_.size(), near_ > far_});
    center_.push_back(x);
    neighbor_.push_back(before);
  }
}

void Walks::judge(const uint8_t* found) {
  for (const Candidate& each : candidates_)
    if (!decided_[each.row] && (each.check < 0 || (found[each.check] != 0) == each.if_found))
      go(each.row, each.node, 0, false);
  int64_t left = 0;  // rows without a candidate that was accepted
  for (int64_t i = 0; i < node_.size(); ++i) {
    node_[left] = node_[i];
    walk_[left] = walk_[i];
    left += !decided_[i];
  }
  if (left > 0) {
    node_.resize(left);
    walk_.resize(left);
    num_tried_ = num_draws_;
    num_draws_ *= 4;
    require(num_draws_ <= kMostDraws, "a step of node2vec found no node in ", num_tried_, " draws");
    center_.clear();
    neighbor_.clear();
    return;
  }
  std::swap(node_, next_node_);
  std::swap(walk_, next_walk_);
  std::swap(time_, next_time_);
  ++step_;
  begin_step();
}

void Walks::go(int64_t i, int64_t node, int64_t time, bool is_of_edge) {
  decided_[i] = 1;
  row_of(i)[step_ + 1] = node;
  if (is_of_edge && spec_->earlier) {
    if (time == INT64_MIN) return;  // no edge is earlier: the walk ends
    --time;
  }
  next_node_.push_back(node);
  next_walk_.push_back(walk_[i]);
  if (timed_) next_time_.push_back(time);
}

void walk_here(const std::vector<PartedCsr>& graphs, const WalkSpec& spec, const int64_t* seed,
               const int64_t* seed_time, int64_t n, int num_threads, int64_t* out) {
  check_walks(spec, static_cast<int64_t>(graphs.size()));
  require(n <= UINT32_MAX, "seeds has ", n, " walks: expected fewer than 2^32");
  int64_t chunk = INT64_MAX;
  for (const uint32_t edge_type : spec.path) chunk = std::min(chunk, graphs[edge_type].chunk_rows());
  for_chunks_with(n, chunk, num_threads - 1, [&] {
    return [&, scratch = std::make_unique<WalkScratch>()](int64_t first, int64_t last) {
      Walks& walks = scratch->walks;
      walks.begin(spec, seed + first, seed_time ? seed_time + first : nullptr, last - first,
                  static_cast<uint32_t>(first), out + first * (spec.length + 1));
      while (!walks.is_done()) {
        const PartedCsr& graph = graphs[walks.edge_type()];
        HopSpec hop{walks.num_draws(), true, spec.batch_key, walks.hop(), walks.edge_type(), false};
        hop.with_time = true;
        const bool is_first = walks.hop() == 0;
        RowSamples& samples = scratch->samples;
        samples.clear();
        if (graph.has_edges())
          graph.read_rows(walks.rows(), scratch->read.parts, samples, is_first ? "seeds" : "nodes",
                          is_first ? first : 0,
                          [&](const CsrView& csr, const Rows& rows, RowSamples& found, const char* name, int64_t at) {
                            sample_rows(csr, rows, hop, scratch->read.rows, found, name, at);
                          });
        else
          for (int64_t i = 0; i < walks.rows().n; ++i) samples.count.push_back(0);
        walks.take(samples.count.data(), samples.neighbor.data(),
                   samples.edge.size() > 0 ? samples.edge.data() : nullptr);
        if (const int64_t num_checks = walks.num_checks()) {
          scratch->found.resize(num_checks);
          graph.find_edges(walks.centers(), walks.neighbors(), num_checks, scratch->found.data());
          walks.judge(scratch->found.data());
        }
      }
    };
  });
}

}  // namespace glt
