// Who owns which id, and what that means for a list of ids.
#pragma once

#include <cstdint>
#include <variant>

#include "core/prefetch.h"

namespace glt {

// Contiguous ids: partition p owns [offset[p], offset[p + 1]).
struct Ranges {
  const int64_t* offset;  // [num_parts + 1], from 0, never falling
  int64_t num_parts;

  int64_t operator[](int64_t id) const {
    // The last partition that begins at or before the id, so never an empty one. The step is a conditional move.
    const int64_t* first = offset;
    for (int64_t left = num_parts; left > 1; left -= left / 2) first += first[left / 2] <= id ? left / 2 : 0;
    return first - offset;
  }
};

// The partition that owns each id, in the smallest width that holds the number of partitions.
struct OwnerArray {
  std::variant<const uint8_t*, const uint16_t*, const uint32_t*> owner;  // [num_ids]
  int64_t num_ids;
  int64_t num_parts;
};

// The partition that owns each id: `owner[id]`, whatever the kind, which is looked at once per call, see owner.cc.
struct Book {
  std::variant<const uint8_t*, const uint16_t*, const uint32_t*, Ranges> owner;
  int64_t num_ids;
  int64_t num_parts;
};

template <typename T>
bool owns(const T* owner, int64_t part, int64_t id) {
  return owner[id] == part;
}
inline bool owns(const Ranges& owner, int64_t part, int64_t id) {
  return owner.offset[part] <= id && id < owner.offset[part + 1];
}

template <typename T>
void prefetch_owner(const T* owner, int64_t id) {
  prefetch(owner + id);
}
inline void prefetch_owner(const Ranges&, int64_t) {}  // small enough to stay in the cache

// Groups ids[0, n) by owner, stably: those of part p become grouped[begin[p], begin[p + 1]), and position[i] tells
// where in `ids` grouped[i] stood. begin has num_parts + 1 elements. Throws std::out_of_range naming a bad id.
void group_by_owner(const Book& book, const int64_t* ids, int64_t n, int64_t* grouped, uint32_t* position,
                    int64_t* begin);

// owners[i] = the partition that owns ids[i]. Throws std::out_of_range naming a bad id.
void find_owners(const Book& book, const int64_t* ids, int64_t n, int64_t* owners);

// Throws std::out_of_range naming the first id that `part` does not own.
void require_owned(const Book& book, const int64_t* ids, int64_t n, int64_t part);

}  // namespace glt
