// Rows of edges wherever a kernel can read them, and which of their edges a batch must not take. Device memory, or
// pinned host memory in place: kernels do not care.
#pragma once

#include <cstdint>

#include "core/rng.h"
#include "core/rows.h"
#include "cuda/block.h"

namespace glt::cuda {

// A parameter of a batch, written before its first kernel: the compiler may load it once, whatever is stored meanwhile.
template <typename T>
GLT_HOST_DEVICE T load_parameter(const T* from) {
#if defined(__CUDA_ARCH__)
  return __ldg(from);
#else
  return *from;
#endif
}

// Node or edge ids in one of two widths.
struct DeviceIds {
  const void* data = nullptr;
  bool wide = false;  // int64, else int32

  GLT_HOST_DEVICE int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// The ids of one row by their positions in the column, wherever the row is. Pointers stay pointers, not numbers: nvcc
// then knows that they lead to global memory.
struct RowIds {
  DeviceIds ids;
  int64_t shift = 0;

  GLT_HOST_DEVICE int64_t operator[](int64_t position) const { return ids[position + shift]; }
};

// A CsrView of a whole graph whose arrays a kernel may read. It was validated where it was built.
struct DeviceRows {
  const int64_t* indptr = nullptr;  // [num_nodes + 1]
  DeviceIds indices;                // [num_edges]
  DeviceIds edge_ids;               // [num_edges]; no data: the id of an edge is first_edge_id + its position
  // As in CsrView; null: none.
  const uint64_t* weight_sum = nullptr;
  const uint32_t* weight_guide = nullptr;
  const int64_t* time = nullptr;
  int64_t num_nodes = 0;
  int64_t num_neighbor_nodes = 0;
  int64_t num_edges = 0;
  int64_t first_edge_id = 0;  // as in CsrView
  // Of columns in host memory, copies of some rows in device memory: where each row begins there, less where it begins
  // in the columns, kCold if it does not; null: no copies. Numbers are as wide as in the columns.
  const int64_t* hot_shift = nullptr;  // [num_nodes]
  const void* hot_indices = nullptr;
  const void* hot_edge_ids = nullptr;

  static constexpr int64_t kCold = INT64_MIN;
  GLT_HOST_DEVICE int64_t shift_of(int64_t id) const { return hot_shift ? hot_shift[id] : kCold; }
  GLT_HOST_DEVICE RowIds indices_of(int64_t shift) const { return nearest(indices, hot_indices, shift); }
  GLT_HOST_DEVICE RowIds edge_ids_of(int64_t shift) const { return nearest(edge_ids, hot_edge_ids, shift); }

  GLT_HOST_DEVICE int64_t edge_id(int64_t position, int64_t shift = kCold) const {
    return edge_ids.data ? edge_ids_of(shift)[position] : first_edge_id + position;
  }

 private:
  GLT_HOST_DEVICE static RowIds nearest(const DeviceIds& column, const void* hot, int64_t shift) {
    const bool is_hot = shift != kCold && column.data;
    return {{is_hot ? hot : column.data, column.wide}, is_hot ? shift : 0};
  }
};

// Positions [begin, begin + count) of a list, ascending.
struct FoundExcluded {
  int64_t begin, count;
};

// Edges of one type that a batch must not take, in memory that kernels read: which positions of which rows.
struct ExcludedRows {
  const Exclusions::Slot* slot = nullptr;  // [mask + 1]; null: nothing is excluded
  uint64_t mask = 0;
  const int64_t* neighbor = nullptr;
  FoundExcluded* found = nullptr;  // [mask + 1], where each slot's edges are among:
  int64_t* position = nullptr;     // [room]
  int64_t room = 0;
  uint64_t* used = nullptr;  // how many there are, if more than `room`, too; 0 before

  // Those of node `id` from position `begin` on. Neighbouring rows follow each other, so that no end needs to be told.
  struct Part {
    const int64_t* position;
    int64_t count;

    // How many are among the edges [begin, end).
    GLT_HOST_DEVICE int64_t num_below(int64_t end) const {
      int64_t low = 0;
      for (int64_t high = count; low < high;) {
        const int64_t middle = (low + high) / 2;
        if (load_parameter(position + middle) < end)
          low = middle + 1;
        else
          high = middle;
      }
      return low;
    }
    GLT_HOST_DEVICE bool has(int64_t edge) const {
      const int64_t before = num_below(edge);
      return before < count && load_parameter(position + before) == edge;
    }
    // How many are in front of the eligible edge that has `rank` eligible ones before it, counted from `begin` on.
    GLT_HOST_DEVICE int64_t num_skipped(int64_t begin, int64_t rank) const {
      int64_t low = 0;
      for (int64_t high = count; low < high;) {
        const int64_t s = (low + high) / 2;
        if (load_parameter(position + s) - s <=
            begin + rank)  // position[s] - s - begin eligible edges are in front of it
          low = s + 1;
        else
          high = s;
      }
      return low;
    }
  };
  GLT_HOST_DEVICE Part none() const { return {position, 0}; }  // never null: pointers are then known to be global
  GLT_HOST_DEVICE Part of(int64_t id, int64_t begin) const {
    uint64_t at = home_of_excluded(id, mask);
    while (slot[at].count > 0 && slot[at].center != id) at = (at + 1) & mask;
    if (slot[at].count == 0) return none();
    const Part all{position + found[at].begin, found[at].count};
    const int64_t before = all.num_below(begin);
    return {all.position + before, all.count - before};
  }

  GLT_HOST_DEVICE bool has(const Exclusions::Slot& of_center, int64_t id) const {
    int64_t low = of_center.begin, high = of_center.begin + of_center.count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (neighbor[middle] == id) return true;
      if (neighbor[middle] < id)
        low = middle + 1;
      else
        high = middle;
    }
    return false;
  }
};

// Finds the positions, before the first hop: a block looks through the row of one slot.
struct FindExcluded {
  struct Shared {
    ScanShared scan;
    int64_t begin;
  };
  ExcludedRows excluded;
  DeviceRows rows;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const Exclusions::Slot slot = excluded.slot[block.x()];
    const bool is_row = slot.count > 0 && static_cast<uint64_t>(slot.center) < static_cast<uint64_t>(rows.num_nodes);
    if (!is_row) {
      block.each([&](int thread) {
        if (thread == 0) excluded.found[block.x()] = {0, 0};
      });
      return;
    }
    const int64_t first = rows.indptr[slot.center];
    const Tile tile(rows.indptr[slot.center + 1] - first, 0, 1);
    const auto is_excluded = [&](int64_t i) { return excluded.has(slot, rows.indices[first + i]); };
    scan_tile(block, shared.scan, tile, nullptr, 0, sum_of([&](int64_t i) { return int64_t{is_excluded(i)}; }));
    block.each([&](int thread) {
      if (thread != 0) return;
      const int64_t count = shared.scan.tile_sum();
      const auto begin = static_cast<int64_t>(block.atomic_add(excluded.used, static_cast<uint64_t>(count)));
      const bool fits = begin + count <= excluded.room;  // if not, the batch is made anew with more room
      shared.begin = fits ? begin : -1;
      excluded.found[block.x()] = {fits ? begin : 0, fits ? count : 0};
    });
    if (shared.begin < 0) return;
    block.each([&](int thread) {
      int64_t* at = excluded.position + shared.begin + shared.scan.place(thread);
      for (int64_t i = tile.first(thread); i < tile.last(thread); ++i)
        if (is_excluded(i)) *at++ = first + i;
    });
  }
};

}  // namespace glt::cuda
