// Who owns which id, and what that means for a list of ids.
#pragma once

#include <cstdint>
#include <variant>

namespace glt {

// The partition that owns each id, in the smallest width that holds the number of partitions.
struct Book {
  std::variant<const uint8_t*, const uint16_t*, const uint32_t*> owner;  // [num_ids]
  int64_t num_ids;
  int64_t num_parts;
};

// Groups ids[0, n) by owner, stably: those of part p become grouped[begin[p], begin[p + 1]), and position[i] tells
// where in `ids` grouped[i] stood. begin has num_parts + 1 elements. Throws std::out_of_range naming a bad id.
void group_by_owner(const Book& book, const int64_t* ids, int64_t n, int64_t* grouped, uint32_t* position,
                    int64_t* begin);

// Throws std::out_of_range naming the first id that `part` does not own.
void require_owned(const Book& book, const int64_t* ids, int64_t n, int64_t part);

}  // namespace glt
