#include "core/shm_ring.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>

#include "core/check.h"

namespace glt {
namespace {

constexpr char kMagic[8] = {'G', 'L', 'T', 'R', 'I', 'N', 'G', '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMinArena = uint64_t{16} << 10;

// One block per 64 KiB: messages are usually larger, and the smallest possible lane is then still 64 KiB.
uint32_t num_blocks_for(uint64_t arena_bytes) {
  const uint64_t wanted = std::clamp<uint64_t>(arena_bytes >> 16, 64, 4096);
  return static_cast<uint32_t>((wanted + 63) / 64 * 64);
}

uint64_t bits_offset(uint32_t num_slots) {
  return sizeof(RingHeader) + uint64_t{num_slots} * sizeof(RingSlot);
}

uint64_t arena_offset(uint64_t arena_bytes, uint32_t num_slots) {
  const uint64_t end = bits_offset(num_slots) + num_blocks_for(arena_bytes) / 8;
  return (end + kPage - 1) / kPage * kPage;
}

}  // namespace

uint64_t RingView::region_bytes(uint64_t arena_bytes, uint32_t num_slots) {
  require(arena_bytes >= kMinArena && arena_bytes <= kMaxArena && arena_bytes % 64 == 0, "channel size = ", arena_bytes,
          " bytes: expected a multiple of 64 of at least ", kMinArena);
  require(num_slots >= 1 && num_slots <= (1u << 20), "channel capacity = ", num_slots,
          " messages: expected 1 to 1048576");
  return arena_offset(arena_bytes, num_slots) + arena_bytes;
}

void RingView::format(uint8_t* region, uint64_t size, uint64_t arena_bytes, uint32_t num_slots) {
  const uint64_t needed = region_bytes(arena_bytes, num_slots);
  require(size >= needed, "channel: the region has ", size, " bytes, expected ", needed);
  auto* header = new (region) RingHeader{};
  header->version = kVersion;
  header->num_slots = num_slots;
  header->num_blocks = num_blocks_for(arena_bytes);
  header->arena_bytes = arena_bytes;
  header->arena_offset = arena_offset(arena_bytes, num_slots);
  header->region_bytes = needed;
  auto* slots = reinterpret_cast<RingSlot*>(region + sizeof(RingHeader));
  for (uint32_t i = 0; i < num_slots; ++i) new (&slots[i]) RingSlot{};
  std::memset(region + bits_offset(num_slots), 0, header->num_blocks / 8);
  std::memcpy(header->magic, kMagic, sizeof(kMagic));
}

RingView::RingView(uint8_t* region, uint64_t size) : region_(region) {
  require(size >= sizeof(RingHeader) && std::memcmp(region, kMagic, sizeof(kMagic)) == 0,
          "channel: the shared memory holds no ring (", size, " bytes without its mark)");
  const RingHeader& h = header();
  require(h.version == kVersion, "channel: the ring has version ", h.version, ", expected ", kVersion,
          ": both processes must run the same glt");
  arena_bytes_ = h.arena_bytes;
  num_slots_ = h.num_slots;
  num_blocks_ = h.num_blocks;
  require(region_bytes(arena_bytes_, num_slots_) == h.region_bytes && h.region_bytes <= size &&
              num_blocks_ == num_blocks_for(arena_bytes_) && h.arena_offset == arena_offset(arena_bytes_, num_slots_),
          "channel: the header of the ring is damaged (arena of ", arena_bytes_, " bytes, ", num_slots_, " slots, ",
          num_blocks_, " blocks in a region of ", size, " bytes)");
  slots_ = reinterpret_cast<RingSlot*>(region + sizeof(RingHeader));
  bits_ = reinterpret_cast<std::atomic<uint64_t>*>(region + bits_offset(num_slots_));
  arena_ = region + h.arena_offset;
}

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
