// Global node ids to the local ids of one batch, in order of first occurrence.
//
// Both tables stamp their words: base of the batch + local id. A word below the base of the batch at hand is empty,
// whatever it says.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/buffer.h"
#include "core/check.h"
#include "core/prefetch.h"

namespace glt {

constexpr uint32_t kAbsent = UINT32_MAX;  // no local id: a batch has fewer than 2^32 - 1 nodes

// One 32-bit word per node of the graph: base + local id. Every batch starts with a base above all words written so
// far, which empties the table without touching it; it is cleared only when the words run out.
class DenseTable {
 public:
  explicit DenseTable(int64_t num_nodes) : num_nodes_(num_nodes) {}

  static bool fits(int64_t num_nodes) { return num_nodes < (int64_t{1} << 31); }

  // `num_words`: local ids that this batch may hand out at most.
  void begin(int64_t num_words) {
    if (words_.size() == 0 || base_ + used_ > UINT32_MAX - static_cast<uint64_t>(num_words)) {
      words_.resize(num_nodes_);
      std::fill_n(words_.data(), num_nodes_, 0u);
      base_ = 1;
    } else {
      base_ += used_;
    }
    used_ = 0;
  }
  void prefetch(int64_t node) const { glt::prefetch(words_.data() + node); }

  // Local id of `node`; `next`, which it then gets, if this is its first occurrence.
  uint32_t find_or_add(int64_t node, uint32_t next) {
    // Unconditional store: first occurrences are unpredictable, a branch would cost more.
    const uint32_t base = static_cast<uint32_t>(base_), word = words_[node];
    const uint32_t local = word >= base ? word - base : next;
    words_[node] = base + local;
    used_ = std::max<uint64_t>(used_, local + 1);
    return local;
  }

  // Look-ups add nothing, so several threads may make them at the same time.
  uint32_t base() const { return static_cast<uint32_t>(base_); }
  uint32_t word(int64_t node) const { return words_[node]; }

 private:
  int64_t num_nodes_;
  Buffer<uint32_t> words_;
  uint64_t base_ = 1, used_ = 0;
};

// The same by open addressing: memory follows the batch instead of the graph. In a disjoint batch a node is one per
// tree, so the tree is part of the key; it fills what would be padding.
class HashTable {
 public:
  void begin(int64_t) {
    if (slots_.size() == 0) clear(1 << 12);
    if (base_ + used_ > UINT32_MAX / 2) clear(slots_.size());
    base_ += used_;
    used_ = 0;
    num_entries_ = 0;
  }
  void prefetch(int64_t node, uint32_t tree = 0) const { glt::prefetch(slots_.data() + home(node, tree)); }

  uint32_t find_or_add(int64_t node, uint32_t next, uint32_t tree = 0) {
    require(used_ < UINT32_MAX / 2, "a batch has over 2^31 nodes: use smaller batches or fan-outs");
    Slot& slot = slots_[place(node, tree)];
    if (slot.word >= base_) return slot.word - static_cast<uint32_t>(base_);
    slot = {node, tree, static_cast<uint32_t>(base_) + next};
    used_ = next + 1;
    if (2 * ++num_entries_ > slots_.size()) double_size();
    return next;
  }

  uint32_t base() const { return static_cast<uint32_t>(base_); }
  uint32_t word(int64_t node, uint32_t tree = 0) const { return slots_[place(node, tree)].word; }

 private:
  struct Slot {
    int64_t node;
    uint32_t tree;
    uint32_t word;  // base + local id; below base: free
  };

  int64_t home(int64_t node, uint32_t tree) const {
    const uint64_t key = static_cast<uint64_t>(node) + tree * 0xD1B54A32D192ED03u;
    return static_cast<int64_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }
  // Where the key is, or the free slot where it belongs.
  int64_t place(int64_t node, uint32_t tree) const {
    int64_t at = home(node, tree);
    while (slots_[at].word >= base_ && (slots_[at].node != node || slots_[at].tree != tree))
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void clear(int64_t size) {
    slots_.resize(size);
    std::fill_n(slots_.data(), size, Slot{0, 0, 0});
    shift_ = 64 - __builtin_ctzll(static_cast<uint64_t>(size));
    base_ = 1;
    used_ = 0;
  }
  void double_size() {
    Buffer<Slot> old = std::move(slots_);
    const uint64_t base = base_, used = used_;
    slots_ = Buffer<Slot>();
    clear(2 * old.size());
    base_ = base;
    used_ = used;
    for (int64_t i = 0; i < old.size(); ++i)
      if (old[i].word >= base_) slots_[place(old[i].node, old[i].tree)] = old[i];
  }

  Buffer<Slot> slots_;
  int shift_ = 0;
  uint64_t base_ = 1, used_ = 0;
  int64_t num_entries_ = 0;
};

// Local id of a node (and tree), or kAbsent.
template <typename Table, typename... Key>
uint32_t find_in(const Table& table, Key... key) {
  const uint32_t word = table.word(key...), base = table.base();
  return word >= base ? word - base : kAbsent;
}

}  // namespace glt
