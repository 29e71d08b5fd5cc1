#include "core/weighted_draws.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "core/floyd.h"
#include "core/prefetch.h"
#include "core/weighted_row.h"
#include "core/weights.h"

namespace glt {
namespace {

// Up to so many pieces are kept in a sorted list and skipped one by one; beyond, sums are kept up to date in a tree.
constexpr int64_t kFewTaken = 256;
struct DrawnRow : WeightedRow {
  int64_t i;  // among the rows that are sampled together
};

// Edges without weight fill what is still missing once no weight is left.
void fill_from_weightless(DrawnRow& row, const RowSpans& spans) {
  Buffer<int64_t> weightless;
  int64_t next_excluded = 0;
  const int64_t num_excluded = spans.num_excluded(row.i);
  for (int64_t e = 0; e < row.degree; ++e) {
    if (next_excluded < num_excluded && spans.excluded_of(row.i)[next_excluded] == row.begin + e)
      ++next_excluded;
    else if (row.weight_of(e) == 0)
      weightless.push_back(row.begin + e);
  }
  PickSet picks;
  int64_t* position = row.position + row.done;
  floyd(0, weightless.size(), row.count - row.done, row.draws, static_cast<uint32_t>(row.done), position, picks);
  for (int64_t j = 0; j < row.count - row.done; ++j) position[j] = weightless[position[j]];
}

// A row whose eligible edges weigh nothing: with replacement, all are equally likely.
void draw_weightless(DrawnRow& row, const RowSpans& spans) {
  const int64_t eligible = spans.num_eligible(row.i);
  for (int64_t j = 0; j < row.count; ++j)
    row.position[j] = pick_any(row.begin, eligible, row.draws(static_cast<uint32_t>(j)));
  if (spans.num_excluded(row.i) > 0) spans.skip_excluded(row.i, row.position, row.count);
}

// Weights that change and their sums, each in logarithmic time (Fenwick, Software: Practice and Experience 24(3),
// 1994).
class WeightTree {
 public:
  explicit WeightTree(const DrawnRow& row) : node_(row.degree + 1) {
    for (int64_t e = 0; e < row.degree; ++e) node_[e + 1] = row.weight_of(e);
    for (size_t at = 1; at < node_.size(); ++at)
      if (const size_t up = at + (at & -at); up < node_.size()) node_[up] += node_[at];
  }
  void remove(int64_t edge, uint64_t weight) {
    for (size_t at = edge + 1; at < node_.size(); at += at & -at) node_[at] -= weight;
  }
  // The edge that `u`, below the sum of all, falls on.
  int64_t find(uint64_t u) const {
    size_t at = 0;
    for (size_t step = std::bit_floor(node_.size() - 1); step > 0; step /= 2)
      if (at + step < node_.size() && node_[at + step] <= u) u -= node_[at += step];
    return static_cast<int64_t>(at);
  }

 private:
  std::vector<uint64_t> node_;
};

// All draws of a row of which many edges are taken.
void draw_many(DrawnRow& row, bool replace, const RowSpans& spans) {
  WeightTree tree(row);
  for (int64_t j = 0; j < spans.num_excluded(row.i); ++j) {
    const int64_t edge = spans.excluded_of(row.i)[j] - row.begin;
    tree.remove(edge, row.weight_of(edge));
  }
  for (; row.done < row.count && row.left > 0; ++row.done) {
    const int64_t edge = tree.find(bounded(row.draws(static_cast<uint32_t>(row.done)), row.left));
    row.position[row.done] = row.begin + edge;
    if (replace) continue;
    tree.remove(edge, row.weight_of(edge));
    row.left -= row.weight_of(edge);
  }
}

// One draw of every row at a time: what a row waits for is loaded while the others compute.
void draw_side_by_side(const std::vector<DrawnRow*>& rows, bool replace, Taken* taken) {
  std::vector<DrawnRow*> active = rows;
  for (;;) {
    std::erase_if(active, [](const DrawnRow* row) { return row->is_done(); });
    if (active.empty()) return;
    for (DrawnRow* row : active) {
      row->aim(taken);
      if (row->cut) prefetch(row->cut + (row->target >> row->shift));
    }
    for (DrawnRow* row : active) {
      row->narrow();
      prefetch(row->sum + row->low);
      prefetch(row->sum + (row->low + row->high) / 2);
      prefetch(row->sum + row->high);
    }
    for (DrawnRow* row : active) row->land(replace, taken);
  }
}

// What is left of a row's weight, and the list of the pieces that are taken before the first draw: excluded edges.
void begin_row(DrawnRow& row, const CsrView& csr, const RowSpans& spans, bool is_long_list, std::vector<Taken>& taken) {
  row.start(spans.row[row.i], csr.weight_guide);
  row.taken = row.taken_end = static_cast<int64_t>(taken.size());
  for (int64_t j = 0; j < spans.num_excluded(row.i); ++j) {
    const int64_t edge = spans.excluded_of(row.i)[j] - row.begin;
    const uint64_t weight = row.weight_of(edge);
    row.left -= weight;
    if (is_long_list || weight == 0) continue;
    taken.push_back({row.sum[edge] - weight, weight});
    ++row.taken_end;
  }
}

}  // namespace

void pick_by_weight(const CsrView& csr, const Rows& rows, const HopSpec& spec, const uint32_t* counts,
                    RowScratch& scratch) {
  const RowSpans& spans = scratch.spans;
  std::vector<DrawnRow> drawn;
  drawn.reserve(rows.n);
  int64_t* position = scratch.position.data();
  for (int64_t i = 0; i < rows.n; position += counts[i], ++i) {
    const int64_t begin = spans.begin[i];
    if (counts[i] == 0) continue;
    if (takes_whole(spans.num_eligible(i), counts[i], spec.replace)) {
      std::iota(position, position + counts[i], begin);
      if (spans.num_excluded(i) > 0) spans.skip_excluded(i, position, counts[i]);
      continue;
    }
    drawn.push_back({{.begin = begin,
                      .degree = spans.degree[i],
                      .count = counts[i],
                      .position = position,
                      .sum = csr.weight_sum + begin,
                      .draws = draws_of(rows, i, spec)},
                     i});
    prefetch(csr.weight_sum + begin + spans.degree[i] - 1);
  }

  std::vector<Taken> taken;
  std::vector<DrawnRow*> few;
  for (DrawnRow& row : drawn) {
    const int64_t most_taken = spans.num_excluded(row.i) + (spec.replace ? 0 : row.count);
    const bool is_long_list = most_taken > kFewTaken;
    begin_row(row, csr, spans, is_long_list, taken);
    if (is_long_list) {
      draw_many(row, spec.replace, spans);
    } else {
      few.push_back(&row);
      if (!spec.replace) taken.resize(taken.size() + row.count);
    }
  }
  draw_side_by_side(few, spec.replace, taken.data());
  for (DrawnRow& row : drawn) {
    if (row.done == row.count) continue;
    if (spec.replace)
      draw_weightless(row, spans);
    else
      fill_from_weightless(row, spans);
  }
}

}  // namespace glt
