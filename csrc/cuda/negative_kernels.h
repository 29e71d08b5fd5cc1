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
// that is no edge.
struct FindNegatives {
  struct Shared {
    int64_t node[2];
    uint64_t redraw[2];  // the first that is in time; max_attempts: none
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
        is_spent = is_fixed(end[0], slot) && is_fixed(end[1], slot);
        is_edge = 0;
        for (uint64_t& redraw : shared.redraw) redraw = max_attempts;
      });
      for (int side = 0; side < 2; ++side) {
        if (is_fixed(end[side], slot)) continue;
        const auto draw = [&](uint64_t redraw) {
          const auto number = attempt + static_cast<uint32_t>(redraw) * NegativeDraws::kRedraw;
          return end[side].draws.node(key[side], total[side], slot, number);
        };
        const bool timed = seed_time && end[side].time;
        block.each([&](int thread) {  // each thread a redraw of its own
          for (uint64_t redraw = thread; redraw < (timed ? max_attempts : 1); redraw += kThreads) {
            if (timed && end[side].time[draw(redraw)] > seed_time[slot]) continue;
            block.atomic_min(&shared.redraw[side], redraw);
            return;
          }
        });
        block.each([&](int thread) {
          if (thread != 0) return;
          const bool is_found = shared.redraw[side] < max_attempts;
          shared.node[side] = is_found ? draw(shared.redraw[side]) : end[side].earliest;
          if (!is_found) is_spent = 1;
        });
      }
      block.each([&](int thread) {
        if (thread != 0) return;
        for (int side = 0; side < 2; ++side)
          if (is_fixed(end[side], slot))
            shared.node[side] = end[side].given ? end[side].given[slot] : end[side].earliest;
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
  // A node that is given, or the earliest one, for a seed older than all.
  GLT_HOST_DEVICE bool is_fixed(const NegativeEnd& of, int64_t slot) const {
    return of.given || (of.time && seed_time && seed_time[slot] < of.earliest_time);
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
