#include "core/owner.h"

#include <algorithm>

#include "core/check.h"

namespace glt {
namespace {

void check_id(const Book& book, const int64_t* ids, int64_t i) {
  require_index(static_cast<uint64_t>(ids[i]) < static_cast<uint64_t>(book.num_ids), "ids[", i, "] = ", ids[i],
                " is outside [0, ", book.num_ids, ")");
}

}  // namespace

void group_by_owner(const Book& book, const int64_t* ids, int64_t n, int64_t* grouped, uint32_t* position,
                    int64_t* begin) {
  require(n <= UINT32_MAX, n, " ids at once: expected fewer than 2^32");
  std::fill_n(begin, book.num_parts + 1, 0);
  std::visit(
      [&](const auto& owner) {
        for (int64_t i = 0; i < n; ++i) {
          check_id(book, ids, i);
          prefetch_owner(owner, ids[i]);
        }
        for (int64_t i = 0; i < n; ++i) {
          const int64_t part = owner[ids[i]];
          require_index(part < book.num_parts, "node ", ids[i], " is owned by partition ", part, " of ", book.num_parts,
                        ": the partition book is damaged");
          ++begin[part + 1];
        }
        for (int64_t p = 0; p < book.num_parts; ++p) begin[p + 1] += begin[p];
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = begin[owner[ids[i]]]++;
          grouped[at] = ids[i];
          position[at] = static_cast<uint32_t>(i);
        }
      },
      book.owner);
  for (int64_t p = book.num_parts; p > 0; --p) begin[p] = begin[p - 1];
  begin[0] = 0;
}

void find_owners(const Book& book, const int64_t* ids, int64_t n, int64_t* owners) {
  std::visit(
      [&](const auto& owner) {
        for (int64_t i = 0; i < n; ++i) {
          check_id(book, ids, i);
          owners[i] = owner[ids[i]];
        }
      },
      book.owner);
}

void require_owned(const Book& book, const int64_t* ids, int64_t n, int64_t part) {
  std::visit(
      [&](const auto& owner) {
        for (int64_t i = 0; i < n; ++i) {
          check_id(book, ids, i);
          prefetch_owner(owner, ids[i]);
        }
        for (int64_t i = 0; i < n; ++i)
          require_index(owns(owner, part, ids[i]), "ids[", i, "] = ", ids[i], " belongs to partition ",
                        static_cast<int64_t>(owner[ids[i]]), ", not here (partition ", part,
                        "): ask the partition that owns it");
      },
      book.owner);
}

}  // namespace glt
