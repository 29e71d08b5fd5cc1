// Who touched a word of memory last during a launch, and whether the next touch is in order with it: what
// compute-sanitizer calls racecheck, for shared and for global memory.
#pragma once

#include <cstdint>
#include <vector>

namespace ptx {

struct Access {
  uint32_t thread, block, epoch;  // thread: of the whole launch; epoch: barriers that its block has passed

  // Whether all that this access saw and did comes before `later`.
  bool is_before(const Access& later) const {
    return thread == later.thread || (block == later.block && epoch < later.epoch);
  }
};

// One to eight bytes that are read and written at once. Each function returns what is wrong, or null.
class Word {
 public:
  bool is_written() const { return writes_ != Writes::kNone; }

  // past_l1: by ld.cg, which sees what atomic operations of others did. constant: by ld.nc, which may see anything old.
  const char* read(const Access& by, bool past_l1, bool constant) {
    if (constant && is_written()) return "ld.nc of memory that the kernel writes";
    const bool is_ordered = !is_written() || writer_.is_before(by);
    if (!is_ordered && !(past_l1 && writes_ == Writes::kAtomic)) return "a read beside a write of another thread";
    auto& last = past_l1 ? far_readers_ : readers_;
    if (!last.is_any || last.first.thread != by.thread) last.second = last.is_any ? last.first : by;
    last.first = by;
    last.is_any = true;
    return nullptr;
  }
  const char* write(const Access& by, bool same_value) {
    const bool is_ordered = !is_written() || writer_.is_before(by);
    if (!is_ordered && !(same_value && writes_ == Writes::kPlain)) return "a write beside a write of another thread";
    if (!readers_.are_before(by) || !far_readers_.are_before(by)) return "a write beside a read of another thread";
    writer_ = by;
    writes_ = Writes::kPlain;
    return nullptr;
  }
  const char* atomic(const Access& by) {
    const bool is_ordered = !is_written() || writes_ == Writes::kAtomic || writer_.is_before(by);
    if (!is_ordered) return "an atomic operation beside a write of another thread";
    if (!readers_.are_before(by)) return "an atomic operation beside a read of another thread";
    writer_ = by;
    writes_ = Writes::kAtomic;
    return nullptr;
  }

 private:
  enum class Writes : uint8_t { kNone, kPlain, kAtomic };
  struct Readers {  // the last two threads
    bool is_any = false;
    Access first{}, second{};
    bool are_before(const Access& by) const { return !is_any || (first.is_before(by) && second.is_before(by)); }
  };

  Access writer_{};
  Writes writes_ = Writes::kNone;
  Readers readers_, far_readers_;
};

// The words of a launch, or of a block's shared memory: by address, in a hash table.
class Shadow {
 public:
  // Words that are touched by different lengths do not meet.
  Word& word(uint64_t address, uint64_t bytes) {
    if (2 * num_used_ >= slots_.size()) grow();
    return find(address << 4 | bytes).word;
  }
  void clear() {
    ++launch_;
    num_used_ = 0;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint64_t launch = 0;  // of a launch before: free
    Word word;
  };
  Slot& find(uint64_t key) {
    const uint64_t mask = slots_.size() - 1;
    uint64_t at = (key * 0x9E3779B97F4A7C15u) >> 20 & mask;
    while (slots_[at].launch == launch_ && slots_[at].key != key) at = (at + 1) & mask;
    if (slots_[at].launch != launch_) {
      slots_[at] = {key, launch_, {}};
      ++num_used_;
    }
    return slots_[at];
  }
  void grow() {
    std::vector<Slot> before(slots_.empty() ? 1024 : 2 * slots_.size());
    before.swap(slots_);
    num_used_ = 0;
    for (const Slot& slot : before)
      if (slot.launch == launch_) find(slot.key).word = slot.word;
  }

  std::vector<Slot> slots_;
  uint64_t launch_ = 1, num_used_ = 0;
};

}  // namespace ptx
