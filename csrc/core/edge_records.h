// An edge on its way to its row: what is known of it, in a few words, so that nothing has to be looked up later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "core/csr.h"

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

// Which words a record has: position of its row, neighbour, edge id (its high word only where ids need it), weight
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

}  // namespace glt
