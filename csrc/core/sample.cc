#include "core/sample.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/age.h"
#include "core/check.h"
#include "core/memory.h"
#include "core/numbers.h"
#include "core/pick_rules.h"
#include "core/rng.h"
#include "core/row_draws.h"
#include "core/weights.h"

namespace glt {
namespace {

// Up to so many used ranges are kept in a sorted list and skipped one by one; beyond, sums are kept up to date in a
// tree.
constexpr int64_t kMaxListed = 256;

template <typename Sums>
struct DrawnRow : WeightedRow<Sums, MadeDraws> {
  // Row number i of those that are sampled together.
  DrawnRow(int64_t i, const RowSpans& spans, int64_t count, int64_t* position, const Sums& sums, MadeDraws draws)
      : WeightedRow<Sums, MadeDraws>{spans.begin[i], spans.degree[i], count, position, sums, draws}, i(i) {}
  int64_t i;
};

// Edges without weight fill what is still missing once no weight is left.
template <typename Sums>
void fill_from_weightless(DrawnRow<Sums>& row, const RowSpans& spans, NodeDraws draws) {
  Buffer<int64_t> weightless;
  int64_t next_excluded = 0;
  const int64_t num_excluded = spans.num_excluded(row.i);
  for (int64_t e = 0; e < row.degree; ++e) {
    if (next_excluded < num_excluded && spans.excluded_of(row.i)[next_excluded] == row.begin + e)
      ++next_excluded;
    else if (row.sums.weight_of(e) == 0)
      weightless.push_back(row.begin + e);
  }
  require(weightless.size() >= row.count - row.done, "a row of ", row.degree, " edges has no weight left after ",
          row.done, " draws, but only ", weightless.size(),
          " edges without weight: its weights (weight_sum) are damaged; restore "
          "their file, or partition again");
  int64_t* position = row.position + row.done;
  pick_distinct(0, weightless.size(), row.count - row.done, draws, static_cast<uint32_t>(row.done), position);
  for (int64_t j = 0; j < row.count - row.done; ++j) position[j] = weightless[position[j]];
}

// A row whose eligible edges weigh nothing: with replacement, all are equally likely.
template <typename Sums>
void draw_weightless(DrawnRow<Sums>& row, const RowSpans& spans) {
  const int64_t eligible = spans.eligible[row.i];
  for (int64_t j = 0; j < row.count; ++j)
    row.position[j] = pick_any(row.begin, eligible, row.draws(static_cast<uint32_t>(j)));
  if (spans.num_excluded(row.i) > 0) spans.skip_excluded(row.i, row.position, row.count);
}

// Weights that change and their sums, each in logarithmic time (Fenwick, Software: Practice and Experience 24(3),
// 1994).
class WeightTree {
 public:
  template <typename Sums>
  explicit WeightTree(const DrawnRow<Sums>& row) : node_(row.degree + 1) {
    for (int64_t e = 0; e < row.degree; ++e) node_[e + 1] = row.sums.weight_of(e);
    for (size_t at = 1; at < node_.size(); ++at)
      if (const size_t up = at + (at & -at); up < node_.size()) node_[up] += node_[at];
  }
  void remove(int64_t edge, uint64_t weight) {
    for (size_t at = edge + 1; at < node_.size(); at += at & -at) node_[at] -= weight;
  }
  // The edge that `u`, below the sum of all, falls on; the last one if sums that are no sums say otherwise.
  int64_t find(uint64_t u) const {
    size_t at = 0;
    for (size_t step = std::bit_floor(node_.size() - 1); step > 0; step /= 2)
      if (at + step < node_.size() && node_[at + step] <= u) u -= node_[at += step];
    return static_cast<int64_t>(std::min(at, node_.size() - 2));
  }

 private:
  std::vector<uint64_t> node_;
};

// All draws of a row of which many edges are used.
template <typename Sums>
void draw_by_tree(DrawnRow<Sums>& row, bool replace, const RowSpans& spans) {
  WeightTree tree(row);
  for (int64_t j = 0; j < spans.num_excluded(row.i); ++j) {
    const int64_t edge = spans.excluded_of(row.i)[j] - row.begin;
    tree.remove(edge, row.sums.weight_of(edge));
  }
  for (; row.done < row.count && row.left > 0; ++row.done) {
    const int64_t edge = tree.find(bounded(row.draws(static_cast<uint32_t>(row.done)), row.left));
    row.position[row.done] = row.begin + edge;
    if (replace) continue;
    tree.remove(edge, row.sums.weight_of(edge));
    row.left -= row.sums.weight_of(edge);
  }
}

// One draw of every row at a time: what a row waits for is loaded while the others compute.
template <typename Sums>
void draw_side_by_side(std::vector<DrawnRow<Sums>*>& rows, bool replace, UsedRange* used) {
  constexpr bool is_stored = std::is_same_v<Sums, StoredSums>;  // others are at hand
  for (;;) {
    std::erase_if(rows, [](const auto* row) { return row->is_done(); });
    if (rows.empty()) return;
    for (auto* row : rows) {
      row->aim(used);
      if constexpr (is_stored)
        if (row->sums.cut) {
          const uint32_t* cut = row->sums.cut + row->sums.piece(row->target);
          prefetch(cut);
          prefetch(cut + 1);
        }
    }
    for (auto* row : rows) {
      row->narrow();
      if constexpr (is_stored) {  // all lines of up to 24 sums, and that of the sum before, which a weight is told by
        const uint64_t* sum = row->sums.sum;
        prefetch(sum + std::max<int64_t>(row->low - 1, 0));
        prefetch(sum + std::min(row->low + 7, row->high));
        prefetch(sum + std::min(row->low + 15, row->high));
        prefetch(sum + row->high);
      }
    }
    for (auto* row : rows) row->land(replace, used);
  }
}

// What is left of a row's weight, and the list of the ranges that are used before the first draw: excluded edges.
template <typename Sums>
void begin_row(DrawnRow<Sums>& row, const RowSpans& spans, bool is_long_list, std::vector<UsedRange>& used) {
  row.used = row.used_end = static_cast<int64_t>(used.size());
  for (int64_t j = 0; j < spans.num_excluded(row.i); ++j) {
    const int64_t edge = spans.excluded_of(row.i)[j] - row.begin;
    const uint64_t weight = row.sums.weight_of(edge);
    row.left -= weight;
    if (is_long_list || weight == 0) continue;
    used.push_back({row.sums.before(edge), weight});
    ++row.used_end;
  }
}

// Rows that are drawn together: enough that their loads keep each other company, few enough for the first cache; and so
// many draws at most that are made before, unless one row takes more.
constexpr int64_t kDrawnTogether = 64, kMostMade = 64 * kMaxListed;

// Draws for rows[of[j]], which have spec.num_neighbors picks each, to position[j].
template <typename Sums, typename SumsOf>
void draw_rows(const Rows& rows, const HopSpec& spec, const std::vector<int64_t>& of, const RowSpans& spans,
               const SumsOf& sums_of, const std::vector<int64_t*>& position) {
  const int64_t k = spec.num_neighbors;
  const std::vector<Sums> sums = sums_of(of);
  RowDraws draws;
  draws.make(rows, of, spec, k);
  std::vector<DrawnRow<Sums>> drawn;
  drawn.reserve(of.size());
  for (size_t j = 0; j < of.size(); ++j) drawn.emplace_back(of[j], spans, k, position[j], sums[j], draws.of(j));

  std::vector<UsedRange> used;
  std::vector<DrawnRow<Sums>*> listed;
  for (auto& row : drawn) {
    const int64_t most_used = spans.num_excluded(row.i) + (spec.replace ? 0 : row.count);
    const bool is_long_list = most_used > kMaxListed;
    begin_row(row, spans, is_long_list, used);
    if (is_long_list) {
      draw_by_tree(row, spec.replace, spans);
    } else {
      listed.push_back(&row);
      if (!spec.replace) used.resize(used.size() + row.count);
    }
  }
  draw_side_by_side(listed, spec.replace, used.data());
  for (auto& row : drawn) {
    if (row.done == row.count) continue;
    if (spec.replace)
      draw_weightless(row, spans);
    else
      fill_from_weightless(row, spans, draws_of(rows, row.i, spec));
  }
}

// Writes the positions of the picks of every row, counts[i] of row i, by the law of successive draws: each takes an
// edge with probability proportional to its weight among those that are left. Draw i is a number u below the weight
// that is left; the edge is the one that u falls on when the weights that are left stand side by side in row order. One
// draw per pick, none is rejected. Only when no weight is left, edges of weight zero are taken, each equally likely.
// With replacement nothing is used up. A row that is taken whole comes in order. sums_of(rows) are those of these rows.
template <typename Sums, typename SumsOf>
void pick_by_weight(const Rows& rows, const HopSpec& spec, const uint32_t* counts, const RowSpans& spans,
                    const SumsOf& sums_of, int64_t* position) {
  const int64_t together = std::clamp<int64_t>(kMostMade / std::max<int64_t>(spec.num_neighbors, 1), 1, kDrawnTogether);
  std::vector<int64_t> drawn;
  std::vector<int64_t*> positions;
  for (int64_t i = 0; i < rows.n; position += counts[i], ++i) {
    if (is_drawn(spans.eligible[i], counts[i], spec.replace)) {
      drawn.push_back(i);
      positions.push_back(position);
    } else {
      std::iota(position, position + counts[i], spans.begin[i]);
      if (spans.num_excluded(i) > 0) spans.skip_excluded(i, position, counts[i]);
    }
    if (static_cast<int64_t>(drawn.size()) < together && i + 1 < rows.n) continue;
    draw_rows<Sums>(rows, spec, drawn, spans, sums_of, positions);
    drawn.clear();
    positions.clear();
  }
}

// The positions of a row's eligible edges, in order, but for those that are excluded.
template <typename Visit>
void for_each_eligible(const RowSpans& spans, int64_t i, const Visit& visit) {
  int64_t at = spans.begin[i];
  for (int64_t j = 0; j < spans.num_excluded(i); ++j) {
    visit(at, spans.excluded_of(i)[j]);
    at = spans.excluded_of(i)[j] + 1;
  }
  visit(at, spans.begin[i] + spans.degree[i]);
}

// The `count` edges of a row that come before the others, in row order; of equal ones the earlier. Edges are offered in
// row order.
class Lowest {
 public:
  explicit Lowest(int64_t count) : count_(count) { kept_.reserve(2 * count); }

  void offer(const Candidate& candidate, int64_t position) {
    if (is_full_ && !(candidate < bound_)) return;
    kept_.push_back({candidate, position});
    if (static_cast<int64_t>(kept_.size()) == 2 * count_) cut();
  }
  void take(int64_t* position) {
    if (static_cast<int64_t>(kept_.size()) > count_) cut();
    for (const Edge& edge : kept_) *position++ = edge.position;
    std::sort(position - count_, position);
  }

 private:
  struct Edge {
    Candidate candidate;
    int64_t position;
    bool operator<(const Edge& other) const {
      return candidate < other.candidate || (!(other.candidate < candidate) && position < other.position);
    }
  };
  void cut() {
    std::nth_element(kept_.begin(), kept_.begin() + count_ - 1, kept_.end());
    kept_.resize(count_);
    bound_ = kept_.back().candidate;
    is_full_ = true;
  }

  int64_t count_;
  bool is_full_ = false;
  Candidate bound_{};  // of a full one
  std::vector<Edge> kept_;
};

// Writes the positions of counts[i] edges of every row: those whose neighbours have the lowest numbers, in row order.
// take(i, position) does so for a row that has more.
template <typename Take>
void pick_by_number(const Rows& rows, const HopSpec& spec, const uint32_t* counts, const RowSpans& spans,
                    int64_t* position, const Take& take) {
  for (int64_t i = 0; i < rows.n; position += counts[i], ++i) {
    if (counts[i] == 0) continue;
    if (!takes_whole(spans.eligible[i], counts[i], spec.replace)) {
      take(i, position);
      continue;
    }
    std::iota(position, position + counts[i], spans.begin[i]);
    if (spans.num_excluded(i) > 0) spans.skip_excluded(i, position, counts[i]);
  }
}

// The same by weight: sums_of(rows) are those of these rows.
template <typename SumsOf>
void pick_by_number_and_weight(const CsrView& csr, const Rows& rows, const HopSpec& spec, const uint32_t* counts,
                               const RowSpans& spans, const SumsOf& sums_of, int64_t* position) {
  std::visit(
      [&](auto* indices) {
        pick_by_number(rows, spec, counts, spans, position, [&](int64_t i, int64_t* position) {
          const auto weights = sums_of({i})[0];
          Lowest lowest(counts[i]);
          for_each_eligible(spans, i, [&](int64_t begin, int64_t end) {
            for (int64_t e = begin; e < end; ++e)
              lowest.offer({number_of(spec.number_key, indices[e]), weights.weight_of(e - spans.begin[i])}, e);
          });
          lowest.take(position);
        });
      },
      csr.indices);
}

// Writes the positions of counts[i] picks of every row, whose weights are those of the edges or of their ages.
template <typename Sums, typename SumsOf>
void pick_by_sums(const CsrView& csr, const Rows& rows, const HopSpec& spec, const uint32_t* counts,
                  const RowSpans& spans, const SumsOf& sums_of, int64_t* position) {
  if (spec.by_number)
    pick_by_number_and_weight(csr, rows, spec, counts, spans, sums_of, position);
  else
    pick_by_weight<Sums>(rows, spec, counts, spans, sums_of, position);
}

std::vector<StoredSums> stored_sums(const CsrView& csr, const RowSpans& spans, const std::vector<int64_t>& rows) {
  for (const int64_t i : rows) prefetch(csr.weight_sum + spans.begin[i] + spans.degree[i] - 1);
  std::vector<StoredSums> sums;
  sums.reserve(rows.size());
  for (const int64_t i : rows)
    sums.emplace_back(csr.weight_sum, csr.weight_guide, spans.row[i], spans.begin[i], spans.degree[i]);
  return sums;
}

std::vector<AgeSums> age_sums(const CsrView& csr, const Rows& given, const HopSpec& spec, const RowSpans& spans,
                              const std::vector<int64_t>& rows) {
  std::vector<AgeSums> sums(rows.size());
  std::vector<AgeSearch> searches;
  searches.reserve(rows.size());
  for (size_t j = 0; j < rows.size(); ++j) {
    const int64_t i = rows[j];
    searches.emplace_back(csr.time + spans.begin[i], spans.degree[i], given.seed_time[i], spec.half_life, &sums[j]);
    prefetch(searches.back().next());
  }
  while (!searches.empty())
    std::erase_if(searches, [](AgeSearch& search) {
      if (!search.advance()) return true;
      prefetch(search.next());
      return false;
    });
  return sums;
}

void pick_by_number_alone(const CsrView& csr, const Rows& rows, const HopSpec& spec, const uint32_t* counts,
                          RowScratch& scratch, int64_t* position) {
  const RowSpans& spans = scratch.spans;
  std::visit(
      [&](auto* indices) {
        for (int64_t i = 0; i < rows.n; ++i) prefetch(indices + spans.begin[i]);
        pick_by_number(rows, spec, counts, spans, position, [&](int64_t i, int64_t* position) {
          LowestNumbers& lowest = scratch.lowest;
          lowest.start(spec.number_key, counts[i], spans.eligible[i]);
          do {
            for_each_eligible(spans, i, [&](int64_t begin, int64_t end) { lowest.offer(indices, begin, end); });
          } while (!lowest.are_enough());
          lowest.take(position);
        });
      },
      csr.indices);
}

}  // namespace

void check_spec(const HopSpec& spec) {
  require(spec.num_neighbors >= -1 && spec.num_neighbors <= INT32_MAX, "num_neighbors[", spec.hop,
          "] = ", spec.num_neighbors, ": expected -1 (all) or a count in [0, 2^31)");
  require(!(spec.replace && spec.num_neighbors < 0), "num_neighbors[", spec.hop,
          "] = -1 with replace = True: drawing with replacement needs a count");
  require(spec.hop < 256, "num_neighbors has over 256 hops");
  require(spec.edge_type < 65535, "edge_type = ", spec.edge_type, ": expected below 65535");
  require(spec.time_window >= -1, "time_window = ", spec.time_window, ": expected at least 0, or -1 (none)");
  require(!(spec.by_number && (spec.replace || spec.latest_only)),
          "replace or last was given with numbers of nodes, which take each edge once, and none for its time");
  require(!(spec.with_edge && spec.with_time), "with_edge and with_time: expected one of the two");
  require(spec.half_life >= 0, "half_life = ", spec.half_life, ": expected above 0, or 0 (none)");
}

void sample_rows(const CsrView& csr, const Rows& rows, const HopSpec& spec, RowScratch& scratch, RowSamples& out,
                 const char* name, int64_t first_index) {
  const int64_t k = spec.num_neighbors;
  const bool by_time = csr.time && (rows.seed_time || spec.latest_only);
  require(!by_time || !csr.weight_sum,
          "seed_time or last was given for edges with times and weights: expected one of the two, leave out the other");
  const SpanRule rule{spec.exclusions, spec.time_window, by_time && spec.latest_only ? k : -1};
  find_spans(csr, rows, rule, scratch.spans, name, first_index);
  out.count.reserve_more(rows.n);
  uint32_t* counts = out.count.end();
  int64_t total = 0, most = 0;
  for (int64_t i = 0; i < rows.n; ++i) {
    const int64_t count = num_picks(scratch.spans.eligible[i], k, spec.replace);
    counts[i] = static_cast<uint32_t>(count);
    total += count;
    most = std::max(most, count);
  }
  for (int64_t i = 0; most > UINT32_MAX && i < rows.n; ++i)
    require(k >= 0 || scratch.spans.eligible[i] <= UINT32_MAX, name, "[", first_index + i, "] = ", rows.node[i],
            " has ", scratch.spans.eligible[i], " edges: num_neighbors = -1 takes at most 2^32 - 1 of one node");
  const RowSpans& spans = scratch.spans;
  const bool with_time = spec.with_time && csr.time && rows.seed_time;
  const bool is_kept = spec.with_edge || with_time;  // what is there takes the place of the positions
  if (is_kept)
    out.edge.reserve_more(total + kRunSlack);
  else
    scratch.position.resize(total + kRunSlack);
  int64_t* const position = is_kept ? out.edge.end() : scratch.position.data();
  if (csr.weight_sum)
    pick_by_sums<StoredSums>(
        csr, rows, spec, counts, spans, [&](const std::vector<int64_t>& of) { return stored_sums(csr, spans, of); },
        position);
  else if (spec.half_life > 0 && csr.time && rows.seed_time)
    pick_by_sums<AgeSums>(
        csr, rows, spec, counts, spans,
        [&](const std::vector<int64_t>& of) { return age_sums(csr, rows, spec, spans, of); }, position);
  else if (spec.by_number)
    pick_by_number_alone(csr, rows, spec, counts, scratch, position);
  else
    pick_uniformly(rows, spec, counts, spans, position);

  const bool fetch_ids = spec.with_edge && csr.has_edge_ids;
  std::visit(
      [&](auto* indices, auto* edge_ids) {
        for (int64_t e = 0; e < total; ++e) {
          prefetch(indices + position[e]);
          if (fetch_ids) prefetch(edge_ids + position[e]);
          if (with_time) prefetch(csr.time + position[e]);
        }
        out.neighbor.reserve_more(total);
        int64_t* neighbor = out.neighbor.end();
        for (int64_t e = 0; e < total; ++e) neighbor[e] = indices[position[e]];
        if (fetch_ids)
          for (int64_t e = 0; e < total; ++e) position[e] = edge_ids[position[e]];
      },
      csr.indices, csr.edge_ids);
  if (spec.with_edge && !fetch_ids && csr.first_edge_id != 0)
    for (int64_t e = 0; e < total; ++e) position[e] += csr.first_edge_id;
  if (with_time)
    for (int64_t e = 0; e < total; ++e) position[e] = csr.time[position[e]];
  out.neighbor.added(total);
  if (is_kept) out.edge.added(total);
  out.count.added(rows.n);
}

}  // namespace glt
