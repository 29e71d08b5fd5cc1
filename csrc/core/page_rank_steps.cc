#include "core/page_rank_steps.h"

#include <algorithm>
#include <cstddef>
#include <variant>

#include "core/check.h"

namespace glt {

PageRankSteps::PageRankSteps(std::vector<std::pair<uint32_t, uint32_t>> ends, uint32_t num_types,
                             const PageRankSpec& spec, uint32_t seed_type, uint32_t wanted_type,
                             std::vector<int64_t> seed, uint32_t* count, int64_t* neighbor, double* score)
    : ends_(std::move(ends)),
      spec_(spec),
      seed_type_(seed_type),
      wanted_type_(wanted_type),
      seed_(std::move(seed)),
      count_(count),
      neighbor_(neighbor),
      score_(score),
      has_edges_(num_types),
      kept_(ends_.size()),
      asked_(num_types),
      asked_known_(num_types),
      is_answered_(ends_.size()),
      num_answered_(ends_.size()) {
  check_page_rank(spec_);
  check_types(ends_, num_types, seed_type_, wanted_type_);
  for (const auto& [from, to] : ends_) has_edges_[from] = 1;
  table_.begin(0);
  const auto num_places = std::min<int64_t>(kSeedsTogether, static_cast<int64_t>(seed_.size()));
  for (int64_t i = 0; i < num_places; ++i) places_.push_back({Push(num_types, spec_), -1});
  go_on();
}

uint32_t PageRankSteps::known(uint32_t type, int64_t id) {
  const auto next = static_cast<uint32_t>(known_.size());
  const uint32_t at = table_.find_or_add(id, next, type);
  if (at == next) {
    known_.push_back({0, kNotAsked});
    if (has_edges_[type]) ask(type, id, at);  // where no edges lead from it, the degree is known
  }
  return at;
}

void PageRankSteps::ask(uint32_t type, int64_t id, uint32_t known) {
  asked_[type].push_back(id);
  asked_known_[type].push_back(known);
}

bool PageRankSteps::is_anything_asked() const {
  return std::any_of(asked_.begin(), asked_.end(), [](const auto& ids) { return !ids.empty(); });
}

template <typename Each>
void PageRankSteps::for_listed(const Each& each) {
  for (Place& place : places_) {
    if (place.seed < 0) continue;
    for (uint32_t type = 0; type < asked_.size(); ++type) {
      const std::vector<uint32_t>& nodes = place.push.listed(type);
      for (size_t i = 0; i < nodes.size(); ++i)
        each(place.push, type, static_cast<int64_t>(i), known(type, place.push.id(nodes[i])));
    }
  }
}

void PageRankSteps::begin_seeds() {
  const auto num_seeds = static_cast<int64_t>(seed_.size());
  const int64_t k = spec_.num_neighbors;
  bool is_any = false;
  for (Place& place : places_) {
    while (place.seed < 0 ? next_ < num_seeds : place.push.is_done()) {
      const int64_t done = place.seed;
      if (done >= 0) count_[done] = place.push.best(wanted_type_, neighbor_ + done * k, score_ + done * k);
      place.seed = next_ < num_seeds ? next_++ : -1;
      if (place.seed < 0) break;
      place.push.begin(seed_type_, seed_[place.seed]);
    }
    if (place.seed < 0) continue;
    is_any = true;
    place.push.list_unknown();
  }
  for_listed([](const Push&, uint32_t, int64_t, uint32_t) {});  // asks for what is not known
  step_ = is_any ? Step::kAddDegrees : Step::kDone;
}

void PageRankSteps::add_degrees() {
  for_listed([&](Push& push, uint32_t type, int64_t i, uint32_t at) {
    push.add_degree(push.listed(type)[i], known_[at].degree);
  });
  for (Place& place : places_)
    if (place.seed >= 0) place.push.list_pushed();
  for_listed([&](Push& push, uint32_t type, int64_t i, uint32_t at) {
    if (known_[at].row != kNotAsked) return;
    known_[at].row = kNone;
    ask(type, push.id(push.listed(type)[i]), at);
  });
  step_ = Step::kPassOn;
}

void PageRankSteps::pass_on() {
  for_listed([&](Push& push, uint32_t type, int64_t i, uint32_t at) {
    for (int64_t j = known_[at].row; j != kNone; j = rows_[j].next) {
      const Row& row = rows_[j];
      push.pass_on(type, i, ends_[row.edge_type].second, kept_[row.edge_type].data() + row.begin, row.count);
    }
  });
  step_ = Step::kBegin;
}

void PageRankSteps::take(uint32_t edge_type, const uint32_t* position, const uint32_t* count, int64_t n, Ids neighbor,
                         int64_t num_edges) {
  require(edge_type < ends_.size(), "edge_type = ", edge_type, ": expected below ", ends_.size());
  const uint32_t from = ends_[edge_type].first;
  std::vector<uint8_t>& is_answered = is_answered_[edge_type];
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) {
    total += count[i];
    require(position[i] < is_answered.size() && !is_answered[position[i]], "position[", i, "] = ", position[i],
            ": expected one of ", is_answered.size(), " nodes that is not answered yet");
    require(i == 0 || position[i - 1] < position[i], "position[", i, "] = ", position[i],
            ": expected more than the one before, ", position[i - 1]);
  }
  require(num_edges == (wants_rows() ? total : 0), "neighbor has ", num_edges, " elements: expected ",
          wants_rows() ? total : 0);
  Buffer<int64_t>& kept = kept_[edge_type];
  int64_t begin = kept.size();
  for (int64_t i = 0; i < n; ++i) {
    is_answered[position[i]] = 1;
    Known& node = known_[asked_known_[from][position[i]]];
    if (!wants_rows()) {
      node.degree += count[i];
      continue;
    }
    if (count[i] == 0) continue;
    rows_.push_back({begin, count[i], node.row, edge_type});
    node.row = static_cast<int64_t>(rows_.size()) - 1;
    begin += count[i];
  }
  num_answered_[edge_type] += n;
  std::visit(
      [&](const auto* ids) {
        kept.reserve_more(num_edges);
        std::copy_n(ids, num_edges, kept.end());
        kept.added(num_edges);
      },
      neighbor);
}

void PageRankSteps::require_all_answered() const {
  for (uint32_t r = 0; r < ends_.size(); ++r) {
    const auto n = static_cast<int64_t>(asked_[ends_[r].first].size());
    require(num_answered_[r] == n, "go_on: ", num_answered_[r], " nodes are answered along edge type ", r,
            ": expected ", n);
  }
  if (!wants_rows()) return;
  for (uint32_t type = 0; type < asked_.size(); ++type)
    for (size_t i = 0; i < asked_[type].size(); ++i) {
      const Known& node = known_[asked_known_[type][i]];
      int64_t found = 0;
      for (int64_t j = node.row; j != kNone; j = rows_[j].next) found += rows_[j].count;
      require(found == node.degree, "node ", asked_[type][i], " has ", found,
              " edges: expected as many as told before, ", node.degree);
    }
}

void PageRankSteps::go_on() {
  require_all_answered();
  for (auto& ids : asked_) ids.clear();
  for (auto& numbers : asked_known_) numbers.clear();
  do {
    if (step_ == Step::kBegin)
      begin_seeds();
    else if (step_ == Step::kAddDegrees)
      add_degrees();
    else
      pass_on();
  } while (!is_done() && !is_anything_asked());
  for (uint32_t r = 0; r < ends_.size(); ++r) {
    is_answered_[r].assign(asked_[ends_[r].first].size(), 0);
    num_answered_[r] = 0;
  }
}

}  // namespace glt
