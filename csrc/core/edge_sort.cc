#include "core/edge_sort.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <variant>
#include <vector>

#include "core/check.h"
#include "core/memory.h"
#include "core/row_writers.h"

namespace glt {
namespace {

constexpr int64_t kCountedEdges = int64_t{1} << 20;  // read at a time by pass 1
constexpr int64_t kPieceBytes = int64_t{16} << 10;
constexpr int64_t kCacheBytes = int64_t{8} << 20;
constexpr int64_t kManyBuckets = 512;

void check_edge(int64_t edge, int64_t row, int64_t col, const EdgeList& edges) {
  const auto check = [&](const char* end, int64_t id, int64_t bound) {
    require_index(static_cast<uint64_t>(id) < static_cast<uint64_t>(bound), "the ", end, " of edge ", edge, " is ", id,
                  ", outside [0, ", bound, ")");
  };
  check("row", row, edges.num_nodes);
  check("neighbour", col, edges.num_neighbors);
}

// Calls visit(edge, row, neighbour) for the edges [begin, end), whose ids are in range.
template <typename Visit>
void for_each_edge(const EdgeList& edges, int64_t begin, int64_t end, const Visit& visit) {
  std::visit(
      [&](auto* row, auto* col) {
        for (int64_t e = begin; e < end; ++e) {
          const int64_t r = row[e], c = col[e];
          if (static_cast<uint64_t>(r) >= static_cast<uint64_t>(edges.num_nodes) ||
              static_cast<uint64_t>(c) >= static_cast<uint64_t>(edges.num_neighbors)) [[unlikely]]
            check_edge(e, r, c, edges);
          visit(e, r, c);
        }
      },
      edges.row, edges.col);
}

int64_t bytes_per_edge(const EdgeList& edges) {
  const auto width = [](Ids ids) { return std::visit([](auto* p) -> int64_t { return sizeof(*p); }, ids); };
  return width(edges.row) + width(edges.col);
}

// Rows that follow each other, cut into ranges of so many edges at most; a row with more is a range of its own.
class Buckets {
 public:
  Buckets(const int64_t* indptr, int64_t num_rows, int64_t max_edges) {
    const auto cut_at = [&](int64_t row) {
      if (!row_.empty() && row_.back() == row) return;
      row_.push_back(row);
      edge_.push_back(indptr[row]);
    };
    cut_at(0);
    for (int64_t row = 0; row < num_rows; ++row) {
      if (indptr[row + 1] - edge_.back() > max_edges) cut_at(row);
      if (indptr[row + 1] - indptr[row] > max_edges) cut_at(row + 1);
    }
    cut_at(num_rows);
    while ((num_rows >> shift_) >= kGuideSize) ++shift_;
    for (int64_t j = 0; j <= num_rows >> shift_; ++j)
      guide_.push_back(
          static_cast<uint32_t>(std::upper_bound(row_.begin(), row_.end(), j << shift_) - row_.begin() - 1));
  }

  size_t size() const { return row_.size() - 1; }
  int64_t begin_edge(size_t b) const { return edge_[b]; }
  int64_t end_edge(size_t b) const { return edge_[b + 1]; }
  BucketRange operator[](int64_t b) const { return {row_[b], row_[b + 1], edge_[b], edge_[b + 1]}; }

  // The bucket of a row: a guess from its high bits, which is right or a few short.
  uint32_t find(int64_t row) const {
    uint32_t b = guide_[row >> shift_];
    while (row >= row_[b + 1]) ++b;
    return b;
  }

 private:
  static constexpr int64_t kGuideSize = int64_t{1} << 16;
  std::vector<int64_t> row_, edge_;  // [size() + 1]
  std::vector<uint32_t> guide_;
  int shift_ = 0;
};

// Pass 2: one chunk of the input becomes one piece of each bucket.
class Spreader {
 public:
  Spreader(const EdgeList& edges, const RecordLayout& layout, const uint32_t* position, const Buckets& buckets,
           std::vector<int64_t>& cursor, int64_t chunk_edges, int scratch, WorkItems& items)
      : edges_(edges),
        layout_(layout),
        position_(position),
        buckets_(buckets),
        cursor_(cursor),
        chunk_edges_(chunk_edges),
        scratch_(scratch),
        items_(items),
        count_(buckets.size()),
        base_(buckets.size()) {}

  int64_t operator()(int64_t item) {
    const int64_t begin = item * chunk_edges_, end = std::min(edges_.num_edges, begin + chunk_edges_);
    const int64_t n = end - begin;
    row_.resize(n);
    bucket_.resize(n);
    std::fill(count_.begin(), count_.end(), 0);
    for_each_edge(edges_, begin, end, [&](int64_t e, int64_t r, int64_t) {
      row_[e - begin] = position_[r];
      ++count_[bucket_[e - begin] = buckets_.find(position_[r])];
    });
    items_.in_turn(item, [&] {
      for (size_t b = 0; b < count_.size(); ++b) {
        base_[b] = cursor_[b];
        cursor_[b] += count_[b];
        require(cursor_[b] <= buckets_.end_edge(b), "edge_index was changed while it was read");
      }
    });
    fill_and_write(begin, end);
    return n * layout_.bytes();
  }

 private:
  void fill_and_write(int64_t begin, int64_t end) {
    records_.resize((end - begin) * layout_.words);
    at_.resize(count_.size());
    std::exclusive_scan(count_.begin(), count_.end(), at_.data(), int64_t{0});
    std::visit(
        [&](auto* col) {
          for (int64_t e = begin; e < end; ++e) {
            const int64_t neighbor = col[e];
            if (static_cast<uint64_t>(neighbor) >= static_cast<uint64_t>(edges_.num_neighbors)) [[unlikely]]
              check_edge(e, 0, neighbor, edges_);
            const int64_t at = at_[bucket_[e - begin]]++;
            layout_.pack(edges_, e, row_[e - begin], neighbor, records_.data() + at * layout_.words);
          }
        },
        edges_.col);
    const uint32_t* p = records_.data();
    for (size_t b = 0; b < count_.size(); ++b) {
      write_at(scratch_, base_[b] * layout_.bytes(), p, count_[b] * layout_.bytes(), "scratch file");
      p += count_[b] * layout_.words;
    }
  }

  const EdgeList& edges_;
  const RecordLayout& layout_;
  const uint32_t* position_;
  const Buckets& buckets_;
  std::vector<int64_t>& cursor_;  // by bucket: edges before its next one, in the scratch file
  int64_t chunk_edges_;
  int scratch_;
  WorkItems& items_;
  std::vector<int64_t> count_, base_;  // by bucket
  Buffer<int64_t> at_;                 // by bucket
  Buffer<uint32_t> row_, bucket_;      // by edge of the chunk
  Buffer<uint32_t> records_;
};

}  // namespace

SortPlan::SortPlan(const RecordLayout& record, int64_t num_edges, int64_t indices_width, int64_t edge_ids_width,
                   int64_t thread_bytes)
    : record_bytes(record.bytes()),
      thread_bytes(thread_bytes),
      indices_width(indices_width),
      edge_ids_width(edge_ids_width) {
  const int64_t ids = indices_width + edge_ids_width;
  edge_bytes = record_bytes + ids;
  if (record.weight) edge_bytes += record.weight_bytes + 9;  // weight_sum, and less than a byte of weight_guide
  if (record.time) edge_bytes += 8 + 8 + ids + sizeof(TimedPlace);
  const double records = static_cast<double>(num_edges) * record_bytes;
  const auto least = static_cast<int64_t>(std::sqrt(static_cast<double>(kPieceBytes) * records));
  this->thread_bytes = std::max(thread_bytes, least);
  // A bucket that fits into a core's cache sorts fastest, but very many buckets make short pieces.
  const int64_t most = std::max<int64_t>(1, this->thread_bytes / edge_bytes);
  if (num_edges <= most) {
    bucket_edges = most;
    return;
  }
  bucket_edges = std::min(most, std::max(kCacheBytes / edge_bytes, num_edges / kManyBuckets));
  scratch_bytes = num_edges * record_bytes;
}

int64_t count_rows(const EdgeList& edges, const RowOrder& order, int64_t* indptr, int num_threads,
                   const Progress& progress) {
  std::fill_n(indptr, edges.num_nodes + 1, 0);
  std::atomic<int64_t> num_cut{0};
  WorkItems items((edges.num_edges + kCountedEdges - 1) / kCountedEdges, num_threads, progress);
  const auto count = [&](auto* owner, auto* neighbor_owner, int64_t item) {
    const int64_t begin = item * kCountedEdges, end = std::min(edges.num_edges, begin + kCountedEdges);
    int64_t cut = 0;
    // An atomic addition waits for all loads before it, so those of a block come first, side by side.
    constexpr int64_t kBlock = 512;
    uint32_t position[kBlock];
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t n = std::min(kBlock, end - first);
      for_each_edge(edges, first, first + n, [&](int64_t e, int64_t row, int64_t col) {
        cut += owner[row] != neighbor_owner[col];
        position[e - first] = order.position[row];
      });
      for (int64_t i = 0; i < n; ++i) prefetch(indptr + position[i] + 1);
      for (int64_t i = 0; i < n;) {
        const uint32_t row = position[i];
        int64_t run = 1;  // edges often come sorted: those of one row are counted together
        while (i + run < n && position[i + run] == row) ++run;
        if (num_threads > 1)
          std::atomic_ref<int64_t>(indptr[row + 1]).fetch_add(run, std::memory_order_relaxed);
        else
          indptr[row + 1] += run;
        i += run;
      }
    }
    num_cut.fetch_add(cut, std::memory_order_relaxed);
    return (end - begin) * bytes_per_edge(edges);
  };
  items.run([&] {
    return [&](int64_t item) {
      return std::visit([&](auto* owner, auto* neighbor_owner) { return count(owner, neighbor_owner, item); },
                        order.owner.owner, order.neighbor_owner.owner);
    };
  });
  for (int64_t r = 0; r < edges.num_nodes; ++r) indptr[r + 1] += indptr[r];
  return num_cut.load();
}

void sort_edges(const EdgeList& edges, const RowOrder& order, const SortPlan& plan, int64_t* indptr, PartGraphs& graphs,
                int scratch, int num_threads, const Progress& progress) {
  const RecordLayout layout(edges);
  const bool in_memory = plan.scratch_bytes == 0;
  const Buckets buckets(indptr, edges.num_nodes, in_memory ? edges.num_edges : plan.bucket_edges);
  if (!in_memory) {
    std::vector<int64_t> cursor;
    for (size_t b = 0; b < buckets.size(); ++b) cursor.push_back(buckets.begin_edge(b));
    const int64_t chunk_edges = std::max<int64_t>(1, plan.thread_bytes / (plan.record_bytes + 8));
    WorkItems items((edges.num_edges + chunk_edges - 1) / chunk_edges, num_threads, progress);
    items.run([&] { return Spreader(edges, layout, order.position, buckets, cursor, chunk_edges, scratch, items); });
    for (size_t b = 0; b < buckets.size(); ++b)
      require(cursor[b] == buckets.end_edge(b), "edge_index was changed while it was read");
  }
  WorkItems items(static_cast<int64_t>(buckets.size()), num_threads, progress);
  items.run([&] {
    return [&, bucket = RowBucket(layout, plan, indptr, graphs),
            stream = RowStream(layout, plan, scratch, graphs)](int64_t b) mutable {
      const BucketRange range = buckets[b];
      if (in_memory) {
        bucket.begin(range);
        uint32_t record[RecordLayout::kMaxWords];
        for_each_edge(edges, 0, edges.num_edges, [&](int64_t e, int64_t r, int64_t c) {
          layout.pack(edges, e, order.position[r], c, record);
          bucket.place(record);
        });
        return bucket.write();
      }
      if (range.num_edges() > plan.bucket_edges) return stream.write(range);
      bucket.begin(range);
      bucket.place_all(scratch);
      return bucket.write();
    };
  });
}

}  // namespace glt
