#include "core/slot_cache.h"

#include <algorithm>

#include "core/check.h"
#include "core/memory.h"

namespace glt {
namespace {

constexpr int64_t kAhead = 16;
constexpr int kHalvedAfter = 2 * SlotCache::kWays;  // misses of a full set

}  // namespace

SlotCache::SlotCache(int64_t num_slots) {
  require(num_slots >= 1 && num_slots <= int64_t{1} << 32, "num_slots = ", num_slots, ": expected 1 to 2^32");
  sets_.resize((num_slots + kWays - 1) / kWays);
  for (Set& set : sets_) set.id.fill(kNone);
}

int64_t SlotCache::num_used() const {
  const std::lock_guard lock(mutex_);
  int64_t used = 0;
  for (const Set& set : sets_) used += kWays - std::count(set.id.begin(), set.id.end(), kNone);
  return used;
}

SlotCache::Place SlotCache::place_of(int64_t id) const {
  uint64_t h = static_cast<uint64_t>(id);  // the finalizer of MurmurHash3
  h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
  h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
  h ^= h >> 33;
  const auto set = static_cast<int64_t>((h >> 32) * sets_.size() >> 32);
  return {set, static_cast<uint32_t>(h)};
}

int SlotCache::find(const Set& set, uint32_t tag, int64_t id) {
  uint32_t same = 0;
  for (int way = 0; way < kWays; ++way) same |= static_cast<uint32_t>(set.tag[way] == tag) << way;
  for (; same != 0; same &= same - 1)
    if (const int way = __builtin_ctz(same); set.id[way] == id) return way;
  return -1;
}

int64_t SlotCache::look_up(const int64_t* ids, const uint32_t* positions, int64_t n, int64_t* slots,
                           uint32_t* slot_positions, int64_t* rest, uint32_t* rest_positions) {
  const std::lock_guard lock(mutex_);
  int64_t found = 0, missed = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch(&sets_[place_of(ids[i + kAhead]).set]);
    const Place place = place_of(ids[i]);
    Set& set = sets_[place.set];
    const int way = find(set, place.tag, ids[i]);
    if (way >= 0 && set.is_there[way] && set.pins[way] < UINT16_MAX) {
      ++set.pins[way];
      if (set.count[way] < UINT8_MAX) ++set.count[way];
      slots[found] = place.set * kWays + way;
      slot_positions[found++] = positions[i];
    } else {
      rest[missed] = ids[i];
      rest_positions[missed++] = positions[i];
    }
  }
  return found;
}

void SlotCache::unpin(const std::vector<int64_t>& slots) {
  const std::lock_guard lock(mutex_);
  for (const int64_t slot : slots) --sets_[slot / kWays].pins[slot % kWays];
}

int SlotCache::room_for(Set& set, uint32_t tag) {
  const auto free = std::find(set.id.begin(), set.id.end(), kNone);
  if (free != set.id.end()) return static_cast<int>(free - set.id.begin());
  if (++set.num_missed == kHalvedAfter) {
    set.num_missed = 0;
    for (uint8_t& count : set.count) count /= 2;
  }
  // Never 0, which stands for none.
  const auto mark = static_cast<uint16_t>(tag >> 16 | 1);
  const auto before = std::find(set.missed.begin(), set.missed.end(), mark);
  if (before == set.missed.end()) {
    set.missed[set.next_missed++ % kWays] = mark;
    return -1;
  }
  int least = -1;
  for (int way = 0; way < kWays; ++way)
    if (set.pins[way] == 0 && (least < 0 || set.count[way] < set.count[least])) least = way;
  if (least < 0 || set.count[least] > 1) return -1;
  *before = 0;
  return least;
}

int64_t SlotCache::admit(const int64_t* ids, int64_t n, int64_t* index, uint32_t* slots) {
  const std::lock_guard lock(mutex_);
  int64_t admitted = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch(&sets_[place_of(ids[i + kAhead]).set]);
    const Place place = place_of(ids[i]);
    Set& set = sets_[place.set];
    if (find(set, place.tag, ids[i]) >= 0) continue;  // another batch brought it meanwhile
    const int way = room_for(set, place.tag);
    if (way < 0) continue;
    set.tag[way] = place.tag;
    set.id[way] = ids[i];
    set.count[way] = 1;
    set.pins[way] = 1;
    set.is_there[way] = false;
    index[admitted] = i;
    slots[admitted++] = static_cast<uint32_t>(place.set * kWays + way);
  }
  return admitted;
}

void SlotCache::settle(const std::vector<int64_t>& slots, bool are_written) {
  const std::lock_guard lock(mutex_);
  for (const int64_t slot : slots) {
    Set& set = sets_[slot / kWays];
    const auto way = slot % kWays;
    set.is_there[way] = are_written;
    if (!are_written) set.id[way] = kNone;
    --set.pins[way];
  }
}

}  // namespace glt
