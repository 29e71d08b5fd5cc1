// Which ids have a slot in a cache of rows, and which give theirs up.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

namespace glt {

// Ids in sets of kWays slots each: an id is in the set that it hashes to, or not at all, so a look-up reads one or two
// lines, and no table has an element per node of the graph. The rows themselves are the caller's, one per slot.
//
// While a set has free slots every id gets one. In a full set an id takes the place of the one that was asked for the
// least, if it has been asked for before, a short while ago, which 16 bits of each of the ids that missed last tell:
// rows that are asked for once do not push out others. Counts are halved now and then, so that what was hot once is
// forgotten. Slots that are read from, or written to, are pinned and stay. All calls may come from several threads.
class SlotCache {
 public:
  static constexpr int kWays = 16;

  // Of at least num_slots, rounded up to whole sets; takes 19 bytes for each.
  explicit SlotCache(int64_t num_slots);

  int64_t num_slots() const { return static_cast<int64_t>(sets_.size()) * kWays; }
  int64_t num_used() const;

  // Sorts ids [n] into those with a row, as slots with positions, and the others, as ids with positions, both in order;
  // returns how many have one: those are pinned. Outputs have room for n.
  int64_t look_up(const int64_t* ids, const uint32_t* positions, int64_t n, int64_t* slots, uint32_t* slot_positions,
                  int64_t* rest, uint32_t* rest_positions);
  void unpin(const std::vector<int64_t>& slots);

  // Gives slots to some of ids [n] whose rows have come: slots[j] is that of ids[index[j]]; returns how many. They are
  // pinned, and not found, until the caller has written the rows, or has not.
  int64_t admit(const int64_t* ids, int64_t n, int64_t* index, uint32_t* slots);
  void settle(const std::vector<int64_t>& slots, bool are_written);

 private:
  struct Set {
    std::array<uint32_t, kWays> tag{};  // of the hash: whether to look at the id
    std::array<int64_t, kWays> id;      // kNone: free
    std::array<uint16_t, kWays> pins{};
    std::array<uint16_t, kWays> missed{};  // of the ids that found no slot last
    std::array<uint8_t, kWays> count{};
    std::array<bool, kWays> is_there{};
    uint8_t next_missed = 0, num_missed = 0;
  };
  static constexpr int64_t kNone = -1;

  struct Place {
    int64_t set;
    uint32_t tag;
  };
  Place place_of(int64_t id) const;
  static int find(const Set& set, uint32_t tag, int64_t id);  // its way, or -1
  static int room_for(Set& set, uint32_t tag);                // likewise

  mutable std::mutex mutex_;
  std::vector<Set> sets_;
};

}  // namespace glt
