// The negatives of a batch: a block tries the candidates of one slot, one after the other, until one is no edge.
#pragma once

#include <cstdint>

#include "core/pick_rules.h"
#include "cuda/block.h"
#include "cuda/device_rows.h"

namespace glt::cuda {

// One end of the negatives.
struct NegativeEnd {
  NegativeDraws draws;
  const int64_t* given = nullptr;  // [slots], nodes that are not drawn; null: drawn
  const int64_t* time = nullptr;   // [num_nodes]; null: none, or seeds have none
  int64_t earliest = 0, earliest_time = 0;
};

// What glt.sampler.negatives.NegativeRounds finds, with the check of the whole graph: the first attempt of each slot
// that is no edge, of nodes that are not late.
struct FindNegatives {
  struct Shared {
    int64_t node[2];
    // By parity of the attempt: slow threads still read the words of the attempt before. Two, since all threads have to
    // know of the first whether they look for edges before any finds one.
    uint32_t is_spent[2], is_edge[2];  // spent: no draw of an end was in time
  };
  DeviceRows rows;  // without indptr: there are no edges
  bool from_destination;
  NegativeEnd end[2];        // source, destination
  const int64_t* seed_time;  // [slots]; null: none
  uint32_t max_attempts;
  int64_t* node[2];   // [slots], out
  uint64_t* gave_up;  // out: the lowest slot without luck

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const int64_t slot = block.x();
    const uint64_t key[2] = {end[0].draws.key(), end[1].draws.key()};
    const uint64_t total[2] = {end[0].draws.total(), end[1].draws.total()};
    for (uint32_t attempt = 0; attempt < max_attempts; ++attempt) {
      uint32_t &is_spent = shared.is_spent[attempt & 1], &is_edge = shared.is_edge[attempt & 1];
      block.each([&](int thread) {
        if (thread != 0) return;
        is_spent = is_edge = 0;
        for (int side = 0; side < 2; ++side)
          shared.node[side] = candidate(end[side], slot, attempt, key[side], total[side], is_spent);
      });
      look_up(block, shared.node[from_destination], shared.node[!from_destination], is_edge);
      if (is_edge && is_spent) break;
      if (is_edge) continue;
      block.each([&](int thread) {
        if (thread != 0) return;
        for (int side = 0; side < 2; ++side) node[side][slot] = shared.node[side];
      });
      return;
    }
    block.each([&](int thread) {
      if (thread == 0) block.atomic_min(gave_up, static_cast<uint64_t>(slot));
    });
  }

 private:
  GLT_HOST_DEVICE int64_t candidate(const NegativeEnd& of, int64_t slot, uint32_t attempt, uint64_t key, uint64_t total,
                                    uint32_t& is_spent) const {
    if (of.given) return of.given[slot];
    if (!of.time || !seed_time) return of.draws.node(key, total, slot, attempt);
    if (seed_time[slot] < of.earliest_time) return of.earliest;
    for (uint32_t redraw = 0; redraw < max_attempts; ++redraw) {
      const int64_t drawn = of.draws.node(key, total, slot, attempt + redraw * NegativeDraws::kRedraw);
      if (of.time[drawn] <= seed_time[slot]) return drawn;
    }
    is_spent = 1;
    return of.earliest;
  }

  // Rows are in no order, so that all of one is read; up to 256 edges in one step.
  template <typename Block>
  GLT_HOST_DEVICE void look_up(const Block& block, int64_t center, int64_t neighbor, uint32_t& is_edge) const {
    if (!rows.indptr || static_cast<uint64_t>(center) >= static_cast<uint64_t>(rows.num_nodes)) return;
    const int64_t first = rows.indptr[center], last = rows.indptr[center + 1];
    block.each([&](int thread) {
      for (int64_t e = first + thread; e < last; e += kThreads) {
        if (rows.indices[e] != neighbor) continue;
        block.atomic_max(&is_edge, uint32_t{1});
        return;
      }
    });
  }
};

}  // namespace glt::cuda
