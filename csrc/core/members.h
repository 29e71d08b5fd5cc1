// Which ids are those of a batch, or of one of its trees, and where: quick to say no.
#pragma once

#include <cstdint>
#include <utility>

#include "core/memory.h"

namespace glt {

// The nodes of a batch by tree, one tree if it is not disjoint: sorted, and as a bit for each hash of an id, set where
// a node has that hash. Rows of hubs are mostly of nodes without such a bit. How many bits are set before one is where
// its node stands in a table as long as the nodes, so that all of it is in a near cache.
class Members {
 public:
  struct Member {
    int64_t id;
    uint32_t local;
  };

  // Of node[0, n), whose positions are their local ids. tree [n]; null: all are of tree 0.
  void build(const int64_t* node, const uint32_t* tree, int64_t n);

  // The nodes of a tree by id, each once, with the local id of its first row.
  std::pair<const Member*, int64_t> of(uint32_t tree) const {
    if (tree >= groups_.size()) return {nullptr, 0};
    return {members_.data() + groups_[tree].first, groups_[tree].size};
  }

  // Writes which of id[0, n) are nodes of a tree: their positions, ascending, and local ids. Returns how many; both
  // have room for n. Sets `all_known` to whether all ids are in [0, num_ids).
  template <typename Id>
  int64_t select(const Id* id, int64_t n, uint32_t tree, int64_t num_ids, uint32_t* position, uint32_t* local,
                 bool& all_known) const;

  void end_use() {
    groups_.end_use();
    members_.end_use();
    slots_.end_use();
    bits_.end_use();
    set_before_.end_use();
  }

  struct Slot {
    int64_t id;
    uint32_t local;
    uint32_t next;  // slot of the tree with the same bit, 0: none, as slot 0 is first of its bit
  };

 private:
  struct Group {
    int64_t first, size;  // in members_ and slots_
    int64_t first_word;   // in bits_ and set_before_
    int shift;            // of hashes
  };
  void place(const Group& group);

  Buffer<Group> groups_;  // by tree
  Buffer<Member> members_;
  Buffer<Slot> slots_;  // of each bit that is set the first node, in the order of bits; then the others
  Buffer<uint32_t> bits_;
  Buffer<uint32_t> set_before_;  // per word of bits_: bits of the tree set in words before it
};

}  // namespace glt
