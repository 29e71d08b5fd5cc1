// Which occurrence of a node in a batch is its first: what relabelling rests on.
//
// Occurrences are numbered in the order in which the CPU would meet them. Each stamps a word with its number; the
// lowest wins, whichever comes first. A word of a batch is above all words of the batches before, so the table is
// emptied by moving on and cleared only when the words run out.
#pragma once

#include <cstdint>

#include "core/rng.h"
#include "core/weighted_row.h"
#include "cuda/device_rows.h"

namespace glt::cuda {

struct Stamps {
  uint32_t* words = nullptr;        // one per node of the graph; or, with a mask, slots of a hash table
  uint64_t mask = 0;                // 0: no hash table
  const uint64_t* range = nullptr;  // of this batch: see pack

  // Words below `base` are empty; `top` is the word of occurrence 0.
  static uint64_t pack(uint32_t base, uint32_t top) { return uint64_t{top} << 32 | base; }
  GLT_HOST_DEVICE uint32_t base() const { return static_cast<uint32_t>(load_parameter(range)); }
  GLT_HOST_DEVICE uint32_t top() const { return static_cast<uint32_t>(load_parameter(range) >> 32); }
  GLT_HOST_DEVICE uint32_t word_of(int64_t at) const { return top() - static_cast<uint32_t>(at); }
  GLT_HOST_DEVICE int64_t occurrence(uint32_t word) const { return static_cast<int64_t>(top() - word); }
};

// The occurrences of one node type in a batch, [capacity] each.
struct Occurrences {
  int64_t* node = nullptr;
  uint32_t* tree = nullptr;    // of a disjoint batch, where a node is one per tree; null: not disjoint
  uint32_t* col = nullptr;     // local id of the node that was expanded
  int64_t* edge = nullptr;     // null: not wanted
  uint32_t* local = nullptr;   // of first occurrences
  int64_t* scratch = nullptr;  // draws or positions of edges, where a hop needs them
  Taken* taken = nullptr;      // what draws by weight have used up, where a hop needs it
  int64_t capacity = 0;
  int64_t num_nodes = 0;  // of the graph
  Stamps stamps;
  uint64_t* bad = nullptr;   // the lowest occurrence whose node is outside the graph
  uint64_t* need = nullptr;  // the largest capacity that was missing

  GLT_HOST_DEVICE bool is_bad(int64_t at) const {
    return static_cast<uint64_t>(node[at]) >= static_cast<uint64_t>(num_nodes);
  }
  GLT_HOST_DEVICE uint64_t home_of(int64_t id, uint32_t of_tree) const {
    const uint64_t key = static_cast<uint64_t>(id) + of_tree * 0xD1B54A32D192ED03u;
    return (key * 0x9E3779B97F4A7C15u >> 20) & stamps.mask;
  }
  GLT_HOST_DEVICE uint64_t home(int64_t at) const { return home_of(node[at], tree ? tree[at] : 0); }
  GLT_HOST_DEVICE bool is_same(int64_t a, int64_t b) const {
    return node[a] == node[b] && (!tree || tree[a] == tree[b]);
  }

  // One word per node: nobody waits for the answer.
  template <typename Block>
  GLT_HOST_DEVICE void stamp_dense(const Block& block, int64_t at, int64_t id, uint32_t top) const {
    block.atomic_max(stamps.words + id, top - static_cast<uint32_t>(at));
  }

  // A slot holds an occurrence, which tells its key: no wide key in the table, and one 32-bit word to swap. Which slot
  // a key gets depends on who comes first; what the slot says in the end does not.
  template <typename Block>
  GLT_HOST_DEVICE void stamp_hashed(const Block& block, int64_t at) const {
    const uint32_t mine = stamps.word_of(at);
    for (uint64_t slot = home(at);; slot = (slot + 1) & stamps.mask) {
      uint32_t* word = stamps.words + slot;
      uint32_t there = block.load(word);
      while (there < stamps.base()) {
        const uint32_t seen = block.compare_and_swap(word, there, mine);
        if (seen == there) return;
        there = seen;
      }
      if (is_same(stamps.occurrence(there), at)) {
        block.atomic_max(word, mine);
        return;
      }
    }
  }

  // The first occurrence of the node of occurrence `at`, which has been stamped.
  GLT_HOST_DEVICE int64_t first_of(int64_t at) const {
    if (!stamps.mask) return stamps.occurrence(stamps.words[node[at]]);
    for (uint64_t slot = home(at);; slot = (slot + 1) & stamps.mask) {
      const int64_t there = stamps.occurrence(stamps.words[slot]);
      if (is_same(there, at)) return there;
    }
  }

  // Local id of a valid node id, or -1 where the batch does not have it. Not in a disjoint batch.
  GLT_HOST_DEVICE int64_t find(int64_t id) const {
    if (!stamps.mask) {
      const uint32_t word = stamps.words[id];
      return word < stamps.base() ? -1 : int64_t{local[stamps.occurrence(word)]};
    }
    for (uint64_t slot = home_of(id, 0);; slot = (slot + 1) & stamps.mask) {
      const uint32_t word = stamps.words[slot];
      if (word < stamps.base()) return -1;
      if (node[stamps.occurrence(word)] == id) return local[stamps.occurrence(word)];
    }
  }
};

}  // namespace glt::cuda
