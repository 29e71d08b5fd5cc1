// Which parts of a range of bytes are free: first fit with coalescing. Holds offsets, never touches the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace glt {

class Arena {
 public:
  static constexpr uint64_t kAlignment = 64;
  static uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  struct Extent {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  explicit Arena(uint64_t bytes) : free_{{0, bytes}} {}

  // The lowest free extent of aligned(bytes) bytes: reusing low addresses keeps the touched memory small and in cache.
  std::optional<Extent> allocate(uint64_t bytes);
  // As much as there is in one piece between `least` and `most` bytes (both aligned), preferring `most`.
  std::optional<Extent> allocate_between(uint64_t least, uint64_t most);
  // Gives an extent back; it joins its free neighbours.
  void release(Extent extent);

 private:
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes; no two touch
};

}  // namespace glt
