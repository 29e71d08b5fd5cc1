#include "core/edge_set.h"

#include <vector>

#include "core/row_chunks.h"
#include "core/runs.h"

namespace glt {
namespace {

constexpr int64_t kPieceRows = 1024;

// Writes first + i count[i] times for i < n, and nothing behind that: what follows is another thread's.
void write_columns(const uint32_t* count, int64_t n, int64_t first, int64_t* col, const int64_t* end) {
  int64_t i = 0;
  for (; i < n && end - col >= kRunSlack; ++i) {
    write_run(col, count[i], [&](int64_t) { return first + i; });
    col += count[i];
  }
  for (; i < n; ++i) col = std::fill_n(col, count[i], first + i);
}

}  // namespace

template <typename Work>
void EdgeSet::for_pieces(int64_t num_arrays, int num_threads, const Work& work) const {
  const int64_t num_rows = count.size(), num_pieces = (num_rows + kPieceRows - 1) / kPieceRows;
  std::vector<int64_t> offset{0};  // of the edges of each piece
  for (int64_t first = 0; first < num_rows; first += kPieceRows) {
    int64_t sum = 0;
    for (int64_t i = first; i < std::min(first + kPieceRows, num_rows); ++i) sum += count[i];
    offset.push_back(offset.back() + sum);
  }
  const int64_t width = num_pieces ? num_arrays * row.size() / num_pieces : 0;
  for_row_chunks<1>(num_pieces, width, num_threads, [&](int64_t piece, int64_t) {
    const int64_t first = piece * kPieceRows;
    work(first, std::min(kPieceRows, num_rows - first), offset[piece], offset[piece + 1] - offset[piece]);
  });
}

void EdgeSet::copy_to(int64_t* row_out, int64_t* col_out, int64_t* edge_out, int num_threads) const {
  for_pieces(3, num_threads, [&](int64_t first, int64_t num_rows, int64_t begin, int64_t n) {
    std::copy_n(row.data() + begin, n, row_out + begin);
    write_columns(count.data() + first, num_rows, first, col_out + begin, col_out + begin + n);
    if (edge_out) std::copy_n(edge.data() + begin, n, edge_out + begin);
  });
}

std::pair<BlockPool::Block, BlockPool::Block> EdgeSet::hand_over(int num_threads) {
  const int64_t num_edges = row.size();
  row.reserve_more(num_edges);
  int64_t* col = row.end();
  for_pieces(1, num_threads, [&](int64_t first, int64_t num_rows, int64_t begin, int64_t n) {
    write_columns(count.data() + first, num_rows, first, col + begin, col + begin + n);
  });
  row.added(num_edges);
  count.clear();
  BlockPool::Block ends = row.hand_over();
  return {std::move(ends), edge.hand_over()};
}

}  // namespace glt
