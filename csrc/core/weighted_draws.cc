#include "core/weighted_draws.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "core/floyd.h"
#include "core/weights.h"

namespace glt {
namespace {

// A piece of the axis of sums that no draw may hit any more.
struct Taken {
  uint64_t begin, weight;
};

// Up to so many pieces are kept in a sorted list and skipped one by one; beyond, sums are kept up to date in a tree.
constexpr int64_t kFewTaken = 256;
// Rows this short are searched without cut points: their sums are in one or two cache lines.
constexpr int64_t kShortRow = 16;

// One row in the middle of its draws.
struct DrawnRow {
  int64_t i, begin, degree, count;
  int64_t* position;    // [count], picks
  const uint64_t* sum;  // [degree]
  NodeDraws draws;
  const uint32_t* cut = nullptr;  // [num_cuts]; null: a short row
  uint64_t num_cuts = 0;
  int shift = 0;
  int64_t done = 0;                  // picks
  uint64_t left = 0;                 // weight that no pick has taken
  int64_t taken = 0, taken_end = 0;  // the row's part of the list of pieces, ascending
  // The present draw: on the axis of sums, its place in the list, and the edges [low, high] that it may fall on.
  uint64_t target = 0;
  int64_t slot = 0, low = 0, high = 0;
};

uint64_t weight_of(const DrawnRow& row, int64_t edge) {
  return row.sum[edge] - (edge > 0 ? row.sum[edge - 1] : 0);
}

// The first edge of [low, high] whose sum exceeds `target`; the last one's does.
int64_t find_edge(const uint64_t* sum, int64_t low, int64_t high, uint64_t target) {
  const uint64_t* first = sum + low;
  for (int64_t n = high - low; n > 0;) {
    const int64_t half = (n + 1) / 2;
    first += first[half - 1] <= target ? half : 0;
    n -= half;
  }
  return first - sum;
}

// Edges without weight fill what is still missing once no weight is left.
void fill_from_weightless(DrawnRow& row, const RowSpans& spans) {
  Buffer<int64_t> weightless;
  int64_t next_excluded = 0;
  const int64_t num_excluded = spans.num_excluded(row.i);
  for (int64_t e = 0; e < row.degree; ++e) {
    if (next_excluded < num_excluded && spans.excluded_of(row.i)[next_excluded] == row.begin + e)
      ++next_excluded;
    else if (weight_of(row, e) == 0)
      weightless.push_back(row.begin + e);
  }
  PickSet picks;
  int64_t* position = row.position + row.done;
  floyd(0, weightless.size(), row.count - row.done, row.draws, static_cast<uint32_t>(row.done), position, picks);
  for (int64_t j = 0; j < row.count - row.done; ++j) position[j] = weightless[position[j]];
}

// A row whose eligible edges weigh nothing: with replacement, all are equally likely.
void draw_weightless(DrawnRow& row, const RowSpans& spans) {
  const auto eligible = static_cast<uint64_t>(spans.num_eligible(row.i));
  for (int64_t j = 0; j < row.count; ++j)
    row.position[j] = row.begin + static_cast<int64_t>(bounded(row.draws(static_cast<uint32_t>(j)), eligible));
  if (spans.num_excluded(row.i) > 0) spans.skip_excluded(row.i, row.position, row.count);
}

// Weights that change and their sums, each in logarithmic time (Fenwick, Software: Practice and Experience 24(3),
// 1994).
class WeightTree {
 public:
  explicit WeightTree(const DrawnRow& row) : node_(row.degree + 1) {
    for (int64_t e = 0; e < row.degree; ++e) node_[e + 1] = weight_of(row, e);
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
    tree.remove(edge, weight_of(row, edge));
  }
  for (; row.done < row.count && row.left > 0; ++row.done) {
    const int64_t edge = tree.find(bounded(row.draws(static_cast<uint32_t>(row.done)), row.left));
    row.position[row.done] = row.begin + edge;
    if (replace) continue;
    tree.remove(edge, weight_of(row, edge));
    row.left -= weight_of(row, edge);
  }
}

// Draws a number and moves it behind the pieces that are taken; starts loading the cut points of its edge.
void aim(DrawnRow& row, const Taken* taken) {
  row.target = bounded(row.draws(static_cast<uint32_t>(row.done)), row.left);
  row.slot = row.taken;
  for (; row.slot < row.taken_end && taken[row.slot].begin <= row.target; ++row.slot)
    row.target += taken[row.slot].weight;
  if (row.cut) prefetch(row.cut + (row.target >> row.shift));
}

// Looks up between which edges to search; starts loading their sums.
void narrow(DrawnRow& row) {
  row.low = 0;
  row.high = row.degree - 1;
  if (row.cut) {
    const uint64_t piece = row.target >> row.shift;
    row.low = row.cut[piece];
    if (piece + 1 < row.num_cuts) row.high = row.cut[piece + 1];
  }
  prefetch(row.sum + row.low);
  prefetch(row.sum + (row.low + row.high) / 2);
  prefetch(row.sum + row.high);
}

// Takes the edge that the number falls on; `taken` has room for it behind taken_end.
void land(DrawnRow& row, bool replace, Taken* taken) {
  const int64_t edge = find_edge(row.sum, row.low, row.high, row.target);
  row.position[row.done++] = row.begin + edge;
  if (replace) return;
  const uint64_t end = row.sum[edge], begin = edge > 0 ? row.sum[edge - 1] : 0;
  std::copy_backward(taken + row.slot, taken + row.taken_end, taken + row.taken_end + 1);
  taken[row.slot] = {begin, end - begin};
  ++row.taken_end;
  row.left -= end - begin;
}

bool is_done(const DrawnRow& row) {
  return row.done == row.count || row.left == 0;
}

// One draw of every row at a time: what a row waits for is loaded while the others compute.
void draw_side_by_side(const std::vector<DrawnRow*>& rows, bool replace, Taken* taken) {
  std::vector<DrawnRow*> active = rows;
  for (;;) {
    std::erase_if(active, [](const DrawnRow* row) { return is_done(*row); });
    if (active.empty()) return;
    for (DrawnRow* row : active) aim(*row, taken);
    for (DrawnRow* row : active) narrow(*row);
    for (DrawnRow* row : active) land(*row, replace, taken);
  }
}

// What is left of a row's weight, and the list of the pieces that are taken before the first draw: excluded edges.
void begin_row(DrawnRow& row, const CsrView& csr, const RowSpans& spans, bool is_long_list, std::vector<Taken>& taken) {
  const uint64_t total = row.sum[row.degree - 1];
  if (row.degree > kShortRow) {
    const WeightGuide guide(spans.row[row.i], row.begin, row.begin + row.degree, total);
    row.cut = csr.weight_guide + guide.first;
    row.num_cuts = guide.size;
    row.shift = guide.shift;
  }
  row.left = total;
  row.taken = row.taken_end = static_cast<int64_t>(taken.size());
  for (int64_t j = 0; j < spans.num_excluded(row.i); ++j) {
    const int64_t edge = spans.excluded_of(row.i)[j] - row.begin;
    const uint64_t weight = weight_of(row, edge);
    row.left -= weight;
    if (is_long_list || weight == 0) continue;
    taken.push_back({row.sum[edge] - weight, weight});
    ++row.taken_end;
  }
}

}  // namespace

void pick_by_weight(const CsrView& csr, const Rows& rows, const HopSpec& spec, const uint32_t* counts,
                    RowSamples& out) {
  const RowSpans& spans = out.spans;
  std::vector<DrawnRow> drawn;
  drawn.reserve(rows.n);
  int64_t* position = out.position.data();
  for (int64_t i = 0; i < rows.n; position += counts[i], ++i) {
    const int64_t begin = spans.begin[i];
    if (counts[i] == 0) continue;
    if (!spec.replace && counts[i] == spans.num_eligible(i)) {
      std::iota(position, position + counts[i], begin);
      if (spans.num_excluded(i) > 0) spans.skip_excluded(i, position, counts[i]);
      continue;
    }
    drawn.push_back({.i = i,
                     .begin = begin,
                     .degree = spans.degree[i],
                     .count = counts[i],
                     .position = position,
                     .sum = csr.weight_sum + begin,
                     .draws = draws_of(rows, i, spec)});
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
