#include "core/arena.h"

#include <algorithm>
#include <iterator>

namespace glt {

std::optional<Arena::Extent> Arena::allocate(uint64_t bytes) {
  bytes = aligned(std::max<uint64_t>(bytes, 1));
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, room] = *it;
    if (room < bytes) continue;
    const auto next = free_.erase(it);
    if (room > bytes) free_.emplace_hint(next, offset + bytes, room - bytes);
    return Extent{offset, bytes};
  }
  return std::nullopt;
}

std::optional<Arena::Extent> Arena::allocate_between(uint64_t least, uint64_t most) {
  uint64_t largest = 0;
  for (const auto& [offset, room] : free_) largest = std::max(largest, room);
  if (largest < least) return std::nullopt;
  return allocate(std::min(largest, most));
}

void Arena::release(Extent extent) {
  auto [offset, bytes] = extent;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_.emplace_hint(next, offset, bytes);
}

}  // namespace glt
