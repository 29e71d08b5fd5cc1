#include "core/row_claims.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/memory.h"

namespace glt {
namespace {

constexpr int64_t kAhead = 16;
constexpr int kFirstBits = 10;

}  // namespace

int64_t RowClaims::num_ids() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

RowClaims::Slot* RowClaims::home_of(int64_t id) {
  return &slots_[static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15u >> shift_];
}

RowClaims::Slot& RowClaims::find(int64_t id) {
  Slot* slot = home_of(id);
  while (slot->request != kFree && slot->id != id)
    if (++slot == slots_.data() + slots_.size()) slot = slots_.data();
  return *slot;
}

void RowClaims::grow() {
  const int bits = slots_.empty() ? kFirstBits : 64 - shift_ + 1;
  std::vector<Slot> before(size_t{1} << bits);
  std::swap(before, slots_);
  shift_ = 64 - bits;
  for (const Slot& each : before)
    if (each.request != kFree) find(each.id) = each;
}

int64_t RowClaims::claim(const int64_t* ids, const uint32_t* positions, int64_t n, uint32_t request, int64_t* fresh,
                         uint32_t* fresh_positions, int64_t* rows, uint32_t* row_positions,
                         std::vector<Group>& groups) {
  struct Claimed {
    uint32_t request, row, position;
  };
  require(request != kFree, "request = ", request, ": expected less");
  require(n < kFree, "n = ", n, ": expected less than 2^32 - 1 ids");
  const std::lock_guard lock(mutex_);
  int64_t num_fresh = 0;
  std::vector<Claimed> claimed;
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (2 * used_ >= static_cast<int64_t>(slots_.size())) grow();
    if (i + kAhead < n) prefetch(home_of(ids[i + kAhead]));
    Slot& slot = find(ids[i]);
    if (slot.request == kFree) {
      slot = {ids[i], request, static_cast<uint32_t>(num_fresh)};
      ++used_;
      fresh[num_fresh] = ids[i];
      fresh_positions[num_fresh++] = positions[i];
    } else {
      claimed.push_back({slot.request, slot.row, positions[i]});
      most = std::max(most, slot.request);
    }
  }
  groups.clear();
  if (claimed.empty()) return num_fresh;
  std::vector<int64_t> next(static_cast<size_t>(most) + 1);  // where the next row of a request goes
  for (const Claimed& each : claimed) ++next[each.request];
  int64_t end = 0;
  for (uint32_t r = 0; r <= most; ++r) {
    const int64_t count = std::exchange(next[r], end);
    end += count;
    if (count != 0) groups.push_back({r, end});
  }
  for (const Claimed& each : claimed) {
    const int64_t at = next[each.request]++;
    rows[at] = each.row;
    row_positions[at] = each.position;
  }
  return num_fresh;
}

}  // namespace glt
