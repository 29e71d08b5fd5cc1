// Sorting edges into rows when neither edges nor rows fit into memory: an external bucket sort.
//
// Pass 1 counts the edges of each row. Rows that follow each other form buckets that fit into memory; pass 2 reads the
// edges once, front to back, and appends to each bucket, in a scratch file, a record of everything that is known of an
// edge; pass 3 reads bucket by bucket, sorts it by counting, and writes it to the files of its partition. All input
// and output is sequential, or in pieces of many KiB. A row that alone exceeds a bucket is in order already when it
// comes from the scratch file (but for its times, which are merged), so it is streamed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/block_file.h"
#include "core/csr.h"
#include "core/threads.h"

namespace glt {

// Numbers at equal distances in memory, such as a column of a table.
struct Column {
  const std::byte* data;
  int64_t stride;  // in bytes
  int width;       // of a number, in bytes: 1, 2, 4 or 8
  bool is_signed = false;

  const std::byte* at(int64_t i) const { return data + i * stride; }
  int64_t integer(int64_t i) const {
    switch (width) {
      case 1:
        return is_signed ? read_as<int8_t>(i) : read_as<uint8_t>(i);
      case 2:
        return is_signed ? read_as<int16_t>(i) : read_as<uint16_t>(i);
      case 4:
        return is_signed ? read_as<int32_t>(i) : read_as<uint32_t>(i);
      default:
        return read_as<int64_t>(i);
    }
  }

 private:
  // Widened here, since int32_t and uint32_t in one conditional expression would both become uint32_t.
  template <typename T>
  int64_t read_as(int64_t i) const {
    T value;
    std::memcpy(&value, at(i), sizeof(T));
    return value;
  }
};

// The edges of one type as the user has them, or those of them that a machine has: may be mapped, and is read front to
// back.
struct EdgeList {
  Ids row, col;  // [num_edges], the end whose row an edge joins, and the other one
  int64_t num_edges;
  int64_t num_nodes, num_neighbors;  // bounds of row and col
  std::optional<Column> weight;      // [num_edges], float or double
  std::optional<Column> time;        // [num_edges] integers, or [num_neighbors] where an edge has its neighbour's time
  bool time_of_neighbor = false;
  // What rows are to say where nodes and edges are relabelled, or where these are some of the edges.
  const uint32_t* neighbor_id = nullptr;  // [num_neighbors], id of each neighbour; null: its own
  std::optional<Column> edge_id;          // [num_edges] integers, id of each edge; without: its position
  int64_t num_ids;                        // bound of ids of edges
};

// An edge on its way to its row: what is known of it, in a few words, so that nothing has to be looked up later. Which
// words a record has: position of its row, neighbour, edge id (its high word only where ids need it), weight
// (as it came: one word or two), time (two).
struct RecordLayout {
  int high_id = 0, weight = 0, time = 0;  // words into the record; 0: none
  int weight_bytes = 0;
  int words = 3;
  static constexpr int kMaxWords = 8;

  explicit RecordLayout(const EdgeList& edges) {
    if (edges.num_ids > int64_t{1} << 32) high_id = words++;
    if (edges.weight) {
      weight_bytes = edges.weight->width;
      weight = words;
      words += weight_bytes / 4;
    }
    if (edges.time) {
      time = words;
      words += 2;
    }
  }
  int64_t bytes() const { return 4 * words; }

  static uint32_t position(const uint32_t* record) { return record[0]; }
  static uint32_t neighbor(const uint32_t* record) { return record[1]; }
  int64_t edge_id(const uint32_t* record) const {
    return static_cast<int64_t>(uint64_t{record[2]} | (high_id ? uint64_t{record[high_id]} << 32 : 0));
  }
  int64_t time_of(const uint32_t* record) const {
    int64_t value;
    std::memcpy(&value, record + time, sizeof(value));
    return value;
  }

  void pack(const EdgeList& edges, int64_t edge, uint32_t position, int64_t neighbor, uint32_t* record) const {
    record[0] = position;
    const int64_t id = edges.edge_id ? edges.edge_id->integer(edge) : edge;
    record[1] = edges.neighbor_id ? edges.neighbor_id[neighbor] : static_cast<uint32_t>(neighbor);
    record[2] = static_cast<uint32_t>(id);
    if (high_id) record[high_id] = static_cast<uint32_t>(static_cast<uint64_t>(id) >> 32);
    if (weight) std::memcpy(record + weight, edges.weight->at(edge), weight_bytes);
    if (time) {
      const int64_t value = edges.time->integer(edges.time_of_neighbor ? neighbor : edge);
      std::memcpy(record + time, &value, sizeof(value));
    }
  }
};

// The graph files of all partitions: what belongs to a range of edges goes to the partitions that own them.
class PartGraphs {
 public:
  // Arrays with one element per edge; the guide of weights has its own count, see weights.h.
  enum Array { kIndices, kEdgeIds, kWeightSum, kWeightGuide, kTimedIndices, kTimedEdgeIds, kTime, kNumArrays };
  using Files = std::array<std::vector<RowFile>, kNumArrays>;  // by partition; none of an array that is not wanted

  // Rows of all partitions follow one another: those of part p are [first_row[p], first_row[p + 1]).
  PartGraphs(Files files, std::vector<int64_t> first_row, const int64_t* indptr)
      : files_(std::move(files)), first_row_(std::move(first_row)) {
    for (const int64_t row : first_row_) first_edge_.push_back(indptr[row]);
  }

  // Writes elements of `width` bytes for the edges [begin, begin + n), counted over all partitions.
  void write(Array array, int64_t begin, const void* data, int64_t n, int64_t width) {
    const char* p = static_cast<const char*>(data);
    for_each_part(first_edge_, begin, begin + n, [&](size_t part, int64_t from, int64_t to) {
      write_in(array, part, from - first_edge_[part], p + (from - begin) * width, to - from, width);
    });
  }

  void write_in(Array array, size_t part, int64_t at, const void* data, int64_t n, int64_t width) {
    const RowFile& out = files_[array][part];
    out.file->write(out.header_bytes + at * width, data, n * width);
  }

  // Calls visit(part, from, to) for the rows [begin, end) of each partition.
  template <typename Visit>
  void for_each_part_of_rows(int64_t begin, int64_t end, const Visit& visit) const {
    for_each_part(first_row_, begin, end, visit);
  }

  int64_t first_row(size_t part) const { return first_row_[part]; }
  int64_t first_edge(size_t part) const { return first_edge_[part]; }

 private:
  template <typename Visit>
  static void for_each_part(const std::vector<int64_t>& first, int64_t begin, int64_t end, const Visit& visit) {
    // The last partition that starts at or before `begin`; empty ones before it share its start.
    size_t part = std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1;
    for (; begin < end; ++part) {
      const int64_t to = std::min(end, first[part + 1]);
      if (begin < to) visit(part, begin, to);
      begin = std::max(begin, to);
    }
  }

  Files files_;
  std::vector<int64_t> first_row_, first_edge_;  // [num_parts + 1]
};

// How much memory and scratch the sort takes.
struct SortPlan {
  int64_t record_bytes;                   // of an edge in the scratch file
  int64_t edge_bytes;                     // of an edge while its bucket is sorted, everything counted
  int64_t bucket_edges;                   // edges that a bucket may hold
  int64_t thread_bytes;                   // memory of each thread
  int64_t scratch_bytes = 0;              // 0: all edges fit into one bucket
  int64_t indices_width, edge_ids_width;  // of ids in the files, 4 or 8 bytes

  // thread_bytes is what each thread may use. More is taken where pieces of the scratch file would become shorter than
  // 16 KiB: from 275 GB of records on at 64 MiB, memory grows with the square root of their size.
  SortPlan(const RecordLayout& record, int64_t num_edges, int64_t indices_width, int64_t edge_ids_width,
           int64_t thread_bytes);
};

// Where rows go: the rows of all partitions, one partition after the other.
struct RowOrder {
  const uint32_t* position;   // [num_nodes], by node
  OwnerArray owner;           // [num_nodes], by node
  OwnerArray neighbor_owner;  // [num_neighbors], by neighbour
};

// Pass 1: fills indptr [num_nodes + 1], by position, and returns the number of edges whose ends have different owners.
// Throws std::out_of_range if an id is out of range.
int64_t count_rows(const EdgeList& edges, const RowOrder& order, int64_t* indptr, int num_threads,
                   const Progress& progress);

// Passes 2 and 3: writes all arrays of `graphs`. The same bytes with any number of threads and any plan.
//
// `indptr` comes from count_rows; it serves as the cursor and is restored. `scratch` is a file of scratch_bytes; the
// edges of a row keep their input order, and are written once more ordered by time, stably, where there are times.
void sort_edges(const EdgeList& edges, const RowOrder& order, const SortPlan& plan, int64_t* indptr, PartGraphs& graphs,
                int scratch, int num_threads, const Progress& progress);

}  // namespace glt
