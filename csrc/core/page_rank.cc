#include "core/page_rank.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/check.h"
#include "core/threads.h"

namespace glt {
namespace {

constexpr double kCertain = static_cast<double>(uint64_t{1} << kChanceBits);
constexpr int64_t kSeedsTogether = 4;
constexpr int64_t kAhead = 8;  // neighbours whose place in the table is on its way

}  // namespace

void check_page_rank(const PageRankSpec& spec) {
  require(spec.stop >= 1e-4 && spec.stop <= 1, "stop = ", spec.stop, ": expected 1e-4 to 1");
  require(spec.residual_per_edge >= 1e-9 && spec.residual_per_edge <= 1, "residual_per_edge = ", spec.residual_per_edge,
          ": expected 1e-9 to 1");
  require(spec.num_neighbors >= 1 && spec.num_neighbors <= INT32_MAX, "num_neighbors = ", spec.num_neighbors,
          ": expected 1 to 2^31 - 1");
}

Push::Push(uint32_t num_types, const PageRankSpec& spec)
    : num_neighbors_(spec.num_neighbors),
      stop_(static_cast<uint64_t>(std::llround(spec.stop * 4294967296.0))),
      least_(static_cast<uint64_t>(std::llround(spec.residual_per_edge * kCertain))),
      listed_(num_types),
      share_(num_types) {}

void Push::begin(uint32_t type, int64_t seed) {
  table_.begin(0);
  nodes_.clear();
  touched_.clear();
  receive(type, seed, uint64_t{1} << kChanceBits);
}

void Push::receive(uint32_t type, int64_t id, uint64_t chance) {
  const auto next = static_cast<uint32_t>(nodes_.size());
  const uint32_t at = table_.find_or_add(id, next, type);
  if (at == next) nodes_.push_back({id, type, false, -1, 0, 0});
  Node& node = nodes_[at];
  node.residual += chance;
  if (node.is_touched || node.residual <= least_) return;
  node.is_touched = true;
  touched_.push_back(at);
}

void Push::list_unknown() {
  for (auto& nodes : listed_) nodes.clear();
  for (const uint32_t at : touched_)
    if (nodes_[at].degree < 0) {
      nodes_[at].degree = 0;
      listed_[nodes_[at].type].push_back(at);
    }
}

void Push::list_pushed() {
  for (auto& nodes : listed_) nodes.clear();
  for (auto& shares : share_) shares.clear();
  for (const uint32_t at : touched_) {
    Node& node = nodes_[at];
    node.is_touched = false;
    const uint64_t chance = node.residual, degree = static_cast<uint64_t>(node.degree);
    if (chance <= static_cast<unsigned __int128>(least_) * std::max<uint64_t>(degree, 1)) continue;
    node.residual = 0;
    const auto ends = static_cast<uint64_t>(static_cast<unsigned __int128>(chance) * stop_ >> 32);
    const uint64_t share = degree == 0 ? 0 : (chance - ends) / degree;
    node.score += chance - share * degree;  // what cannot be divided stays
    if (share == 0) continue;
    listed_[node.type].push_back(at);
    share_[node.type].push_back(share);
  }
  touched_.clear();
}

void Push::pass_on(uint32_t type, int64_t i, uint32_t to, const int64_t* neighbor, int64_t count) {
  const uint64_t share = share_[type][i];
  for (int64_t j = 0; j < std::min(count, kAhead); ++j) table_.prefetch(neighbor[j], to);
  for (int64_t j = 0; j < count; ++j) {
    if (j + kAhead < count) table_.prefetch(neighbor[j + kAhead], to);
    receive(to, neighbor[j], share);
  }
}

uint32_t Push::best(uint32_t wanted_type, int64_t* neighbor, double* score) {
  best_.clear();
  for (uint32_t at = 1; at < nodes_.size(); ++at)  // the seed is 0
    if (nodes_[at].type == wanted_type && nodes_[at].score > 0) best_.push_back(at);
  const auto is_better = [&](uint32_t a, uint32_t b) {
    const Node &x = nodes_[a], &y = nodes_[b];
    return x.score != y.score ? x.score > y.score : x.id < y.id;
  };
  const auto count = std::min<int64_t>(num_neighbors_, static_cast<int64_t>(best_.size()));
  std::partial_sort(best_.begin(), best_.begin() + count, best_.end(), is_better);
  for (int64_t i = 0; i < count; ++i) {
    neighbor[i] = nodes_[best_[i]].id;
    score[i] = static_cast<double>(nodes_[best_[i]].score) / kCertain;
  }
  return static_cast<uint32_t>(count);
}

namespace {

// A push along edges that are all here.
class PushHere {
 public:
  PushHere(const std::vector<PartedCsr>& graphs, const std::vector<std::pair<uint32_t, uint32_t>>& ends,
           uint32_t num_types, const PageRankSpec& spec)
      : graphs_(graphs), ends_(ends), push_(num_types, spec) {}

  // `index` is the seed's position, for errors.
  uint32_t run(uint32_t seed_type, int64_t seed, uint32_t wanted_type, int64_t index, int64_t* neighbor,
               double* score) {
    push_.begin(seed_type, seed);
    for (bool is_first = true; !push_.is_done(); is_first = false) {
      find_degrees(is_first ? "seeds" : "nodes", is_first ? index : 0);
      push_round();
    }
    return push_.best(wanted_type, neighbor, score);
  }

 private:
  // Has read(csr, rows, ...) read the edges of the nodes that are listed, and calls each(i, neighbours, count) of node
  // i there.
  template <typename Read, typename Each>
  void read_rows(uint32_t edge_type, const char* name, int64_t index, const Read& read, const Each& each) {
    const PartedCsr& graph = graphs_[edge_type];
    const std::vector<uint32_t>& nodes = push_.listed(ends_[edge_type].first);
    if (!graph.has_edges()) return;
    const int64_t n = static_cast<int64_t>(nodes.size()), chunk = graph.chunk_rows();
    asked_.resize(n);
    for (int64_t i = 0; i < n; ++i) asked_[i] = push_.id(nodes[i]);
    for (int64_t first = 0; first < n; first += chunk) {
      const Rows rows{asked_.data() + first, std::min(chunk, n - first)};
      rows_.clear();
      graph.read_rows(rows, scratch_.parts, rows_, name, index, read);
      const int64_t* neighbor = rows_.neighbor.data();
      for (int64_t i = 0; i < rows.n; neighbor += rows_.count[i], ++i) each(first + i, neighbor, rows_.count[i]);
    }
  }

  void find_degrees(const char* name, int64_t index) {
    push_.list_unknown();
    // In the place of neighbours come numbers of them: a row of one.
    const auto read = [&](const CsrView& csr, const Rows& rows, RowSamples& out, const char* what, int64_t first) {
      RowSpans& spans = scratch_.rows.spans;
      find_spans(csr, rows, {}, spans, what, first);
      for (int64_t i = 0; i < rows.n; ++i) {
        out.count.push_back(1);
        out.neighbor.push_back(spans.degree[i]);
      }
    };
    for (uint32_t r = 0; r < graphs_.size(); ++r)
      read_rows(r, name, index, read, [&](int64_t i, const int64_t* degree, uint32_t) {
        push_.add_degree(push_.listed(ends_[r].first)[i], *degree);
      });
  }

  void push_round() {
    push_.list_pushed();
    const auto read = [&](const CsrView& csr, const Rows& rows, RowSamples& out, const char* what, int64_t first) {
      HopSpec all{-1};
      all.with_edge = false;
      sample_rows(csr, rows, all, scratch_.rows, out, what, first);
    };
    for (uint32_t r = 0; r < graphs_.size(); ++r)
      read_rows(r, "nodes", 0, read, [&](int64_t i, const int64_t* neighbor, uint32_t count) {
        push_.pass_on(ends_[r].first, i, ends_[r].second, neighbor, count);
      });
  }

  const std::vector<PartedCsr>& graphs_;
  const std::vector<std::pair<uint32_t, uint32_t>>& ends_;
  Push push_;
  Buffer<int64_t> asked_;
  ReadScratch scratch_;
  RowSamples rows_;
};

}  // namespace

void check_types(const std::vector<std::pair<uint32_t, uint32_t>>& ends, uint32_t num_types, uint32_t seed_type,
                 uint32_t wanted_type) {
  for (const auto& [from, to] : ends)
    require(from < num_types && to < num_types, "ends has node types ", from, " and ", to, ": expected below ",
            num_types);
  require(seed_type < num_types && wanted_type < num_types, "node types ", seed_type, " and ", wanted_type,
          ": expected below ", num_types);
}

void page_ranks(const std::vector<PartedCsr>& graphs, const std::vector<std::pair<uint32_t, uint32_t>>& ends,
                uint32_t num_types, const PageRankSpec& spec, uint32_t seed_type, uint32_t wanted_type,
                const int64_t* seed, int64_t n, int num_threads, uint32_t* count, int64_t* neighbor, double* score) {
  check_page_rank(spec);
  require(ends.size() == graphs.size(), "ends has ", ends.size(), " edge types: expected ", graphs.size());
  check_types(ends, num_types, seed_type, wanted_type);
  const int64_t k = spec.num_neighbors;
  for_chunks_with(n, kSeedsTogether, num_threads - 1, [&] {
    return [&, push = std::make_unique<PushHere>(graphs, ends, num_types, spec)](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        count[i] = push->run(seed_type, seed[i], wanted_type, i, neighbor + i * k, score + i * k);
    };
  });
}

}  // namespace glt
