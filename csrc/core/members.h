// Which ids are those of a batch, or of one of its trees: quick to say no.
#pragma once

#include <cstdint>
#include <utility>

#include "core/memory.h"

namespace glt {

// The nodes of a batch by tree, one tree if it is not disjoint: sorted, and as a bit for each hash of an id, set where
// a node has that hash. Rows of hubs are mostly of nodes without such a bit, and the bits are in a nearer cache than
// the tables of a NodeSet.
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

  // Writes the positions, ascending, of those of id[0, n) that may be nodes of a tree: all that are, and one in 16 of
  // those that are not. Returns how many; `position` has room for n. Sets `all_known` to whether all ids are in
  // [0, num_ids).
  template <typename Id>
  int64_t candidates(const Id* id, int64_t n, uint32_t tree, int64_t num_ids, uint32_t* position,
                     bool& all_known) const;

  void end_use() {
    groups_.end_use();
    members_.end_use();
    bits_.end_use();
  }

 private:
  struct Group {
    int64_t first, size;  // in members_
    int64_t first_word;   // in bits_
    int shift;            // of hashes
  };
  Buffer<Group> groups_;  // by tree
  Buffer<Member> members_;
  Buffer<uint32_t> bits_;
};

}  // namespace glt
