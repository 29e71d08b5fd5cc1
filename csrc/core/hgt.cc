#include "core/hgt.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/rng.h"
#include "core/weights.h"

namespace glt {
namespace {

constexpr uint64_t kWhole = uint64_t{1} << 32;  // what a node gives along each edge type
constexpr int64_t kMostIterations = 255;        // hops of a batch

}  // namespace

void check_hgt(const HgtSpec& spec, int64_t num_node_types) {
  require(static_cast<int64_t>(spec.num_samples.size()) == num_node_types, "num_samples has ", spec.num_samples.size(),
          " lists: expected one per node type, ", num_node_types);
  const size_t num_iterations = spec.num_samples.empty() ? 0 : spec.num_samples[0].size();
  require(num_iterations <= kMostIterations, "num_samples has ", num_iterations, " iterations: expected at most ",
          kMostIterations);
  for (size_t t = 0; t < spec.num_samples.size(); ++t) {
    require(spec.num_samples[t].size() == num_iterations, "num_samples[", t, "] has ", spec.num_samples[t].size(),
            " iterations, num_samples[0] has ", num_iterations, ": expected the same for all node types");
    for (const int64_t k : spec.num_samples[t]) require(k >= 0, "num_samples[", t, "] has ", k, ": expected 0 or more");
  }
}

HgtNodes::HgtNodes(HgtSpec spec, std::vector<int64_t> num_nodes, std::vector<std::pair<uint32_t, uint32_t>> ends,
                   const std::vector<std::pair<const int64_t*, int64_t>>& seeds)
    : spec_(std::move(spec)), num_nodes_(std::move(num_nodes)), ends_(std::move(ends)) {
  const size_t num_types = num_nodes_.size();
  require(seeds.size() == num_types, "seeds has ", seeds.size(), " lists: expected one per node type, ", num_types);
  check_hgt(spec_, static_cast<int64_t>(num_types));
  for (const auto& [expanded, neighbor] : ends_)
    require(expanded < num_types && neighbor < num_types, "ends has node types ", expanded, " and ", neighbor,
            ": expected below ", num_types);
  num_iterations_ = num_types ? static_cast<uint32_t>(spec_.num_samples[0].size()) : 0;
  table_.begin(0);
  open_.resize(num_types);
  newest_.resize(num_types);
  drawn_.resize(num_types);
  for (uint32_t t = 0; t < num_types; ++t)
    for (int64_t i = 0; i < seeds[t].second; ++i) {
      const int64_t id = seeds[t].first[i];
      const auto next = static_cast<uint32_t>(entries_.size());
      if (table_.find_or_add(id, next, t) != next) continue;  // comes twice
      entries_.push_back({id, 0, true});
      newest_[t].push_back(id);
    }
}

void HgtNodes::take(uint32_t edge_type, const uint32_t* count, int64_t n, const int64_t* neighbor, int64_t num_edges) {
  require(edge_type < ends_.size(), "edge type ", edge_type, ": expected below ", ends_.size());
  const auto [expanded, type] = ends_[edge_type];
  require(n == static_cast<int64_t>(newest_[expanded].size()), "count has ", n, " elements: expected one per node, ",
          newest_[expanded].size());
  int64_t at = 0;
  for (int64_t i = 0; i < n; ++i) at += count[i];
  require(at == num_edges, "neighbor has ", num_edges, " elements: expected the sum of count, ", at);
  for (int64_t j = 0; j < num_edges; ++j)
    require_index(static_cast<uint64_t>(neighbor[j]) < static_cast<uint64_t>(num_nodes_[type]), "neighbour id ",
                  neighbor[j], " is outside [0, ", num_nodes_[type], "): the graph's columns are damaged");
  constexpr int64_t kAhead = 16;  // places in the table that are on their way
  for (int64_t j = 0; j < std::min(kAhead, num_edges); ++j) table_.prefetch(neighbor[j], type);
  at = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t share = count[i] == 0 ? 0 : kWhole / count[i];
    for (const int64_t end = at + count[i]; at < end; ++at) {
      if (at + kAhead < num_edges) table_.prefetch(neighbor[at + kAhead], type);
      const auto next = static_cast<uint32_t>(entries_.size());
      const uint32_t found = table_.find_or_add(neighbor[at], next, type);
      if (found == next) {
        entries_.push_back({neighbor[at], 0, false});
        open_[type].push_back(next);
      }
      entries_[found].budget += share;
    }
  }
}

void HgtNodes::draw() {
  require(!is_done(), "all iterations are done");
  for (uint32_t t = 0; t < open_.size(); ++t) draw_of(t);
  ++iteration_;
}

void HgtNodes::draw_of(uint32_t node_type) {
  std::vector<uint32_t>& open = open_[node_type];
  std::vector<int64_t>& newest = newest_[node_type];
  newest.clear();
  const auto n = static_cast<int64_t>(open.size());
  const int64_t k = spec_.num_samples[node_type][iteration_];
  const auto take = [&](int64_t i) {
    entries_[open[i]].is_taken = true;
    newest.push_back(entries_[open[i]].id);
  };
  if (k >= n) {
    for (int64_t i = 0; i < n; ++i) take(i);
  } else if (k > 0) {
    // Doubles of integers below 2^53 times a power of two are squared and rounded once: the same everywhere.
    const auto weight = [&](int64_t i) {
      const auto budget = static_cast<double>(entries_[open[i]].budget);
      return budget * budget;
    };
    double largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, weight(i));
    const WeightScale scale(largest, n);
    uint64_t left = 0;
    sums_.assign(n + 1, 0);
    for (int64_t i = 1; i <= n; ++i) {
      const uint64_t own = scale(weight(i - 1));
      left += own;
      sums_[i] += own;
      if (const int64_t parent = i + (i & -i); parent <= n) sums_[parent] += sums_[i];
    }
    NodeDraws draws(derive_key(spec_.batch_key, Purpose::kBudget, node_type, 0), iteration_, 0, 0);
    for (int64_t drawn = 0; drawn < k; ++drawn) {
      uint64_t target = bounded(draws(static_cast<uint32_t>(drawn)), left);
      int64_t before = 0;  // the candidates whose weights stand before the number
      for (auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n))); step > 0; step /= 2)
        if (before + step <= n && sums_[before + step] <= target) {
          before += step;
          target -= sums_[before];
        }
      take(before);
      const uint64_t own = scale(weight(before));
      left -= own;
      for (int64_t i = before + 1; i <= n; i += i & -i) sums_[i] -= own;
    }
  }
  std::erase_if(open, [&](uint32_t at) { return entries_[at].is_taken; });
  drawn_[node_type].insert(drawn_[node_type].end(), newest.begin(), newest.end());
}

}  // namespace glt
