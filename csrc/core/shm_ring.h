// Messages from one process to another through shared memory, in order, without copies and without shared locks.
//
// The region holds a header, `num_slots` message slots used in turn, one bit per block, and the arena with the data:
//
//     header | slots | released bits | padding to a page | arena
//
// The producer takes a slot and a block of the arena (reserve), fills the block, and makes it visible (commit). Several
// messages may be filled at once and committed in any order: the consumer sees them in the order of reservation. It
// gives blocks back in any order by setting their bits. Which parts of the arena are free is known to the producer
// alone, in its private memory, so a process that is killed at any point leaves nothing half-changed or locked.
//
// What keeps it flowing, whatever the consumer holds on to:
//  - Once a message would bring what the user holds above half of the arena, or half of the blocks, the consumer copies
//    it to private memory and frees the block at once.
//  - A message larger than half of the arena, or one that fits nowhere although the consumer has taken everything
//    before it, is filled in private memory and sent in pieces through a small block of its own (its lane), taken when
//    the message is reserved. At least half of the arena and of the blocks is free then, so some piece of
//    min_lane_bytes() is.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/futex.h"

namespace glt {

enum class RingStatus {
  kOk,
  kTimeout,      // the deadline passed
  kClosed,       // one of the two sides closed the ring
  kInterrupted,  // a signal handler ran: look at its effects, then call again
};

// How far the message of a slot is. Only `kReserved -> *` is written by the producer's commit and `* -> kEmpty` by
// the consumer, so each transition has one writer.
enum class SlotState : uint32_t {
  kEmpty = 0,
  kReserved = 1,   // being filled
  kReady = 2,      // a block with the whole message
  kChain = 3,      // a lane through which the message comes in pieces
  kAbandoned = 4,  // the producer gave up: skip it
};

struct alignas(64) RingSlot {
  std::atomic<SlotState> state;
  uint32_t block;
  uint64_t offset;                // of the block or the lane, from the start of the arena
  uint64_t nbytes;                // of the message
  uint64_t lane_bytes;            // kChain: of each of the lane's two halves
  std::atomic<uint64_t> filled;   // kChain: pieces written so far
  std::atomic<uint64_t> drained;  // kChain: pieces read so far
};

struct RingCounters {
  std::atomic<uint64_t> messages;  // sent or received
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> waits;  // calls that had to sleep
  std::atomic<uint64_t> wait_ns;
  std::atomic<uint64_t> oversize;  // producer: messages sent in pieces
  std::atomic<uint64_t> copied;    // consumer: messages copied because too much was held
};

struct RingHeader {
  char magic[8];
  uint32_t version;
  uint32_t num_slots;
  uint32_t num_blocks;  // a multiple of 64
  uint32_t unused;
  uint64_t arena_bytes;
  uint64_t arena_offset;
  uint64_t region_bytes;
  alignas(64) Event produced;  // the consumer sleeps here: a commit, a piece, a close
  alignas(64) Event freed;     // the producer sleeps here: a free slot, a free block, a drained piece, a close
  alignas(64) std::atomic<uint32_t> producer_closed;
  std::atomic<uint32_t> consumer_closed;
  std::atomic<int32_t> producer_pid;  // 0: nobody yet
  std::atomic<int32_t> consumer_pid;
  alignas(64) RingCounters sent;
  alignas(64) RingCounters received;
  std::atomic<uint64_t> head;  // position of the next message to be received; every earlier slot is done with
};

// Typed pointers into a region. Throws std::invalid_argument unless the region was formatted by this version.
class RingView {
 public:
  static constexpr uint64_t kMaxArena = uint64_t{1} << 46;

  // Bytes of a region for this much data and this many messages under way.
  static uint64_t region_bytes(uint64_t arena_bytes, uint32_t num_slots);
  // Writes the header of an empty ring into zeroed memory.
  static void format(uint8_t* region, uint64_t size, uint64_t arena_bytes, uint32_t num_slots);

  RingView(uint8_t* region, uint64_t size);

  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(region_); }
  RingSlot& slot(uint64_t position) const { return slots_[position % num_slots_]; }
  uint8_t* arena() const { return arena_; }
  uint64_t arena_bytes() const { return arena_bytes_; }
  uint32_t num_slots() const { return num_slots_; }
  uint32_t num_blocks() const { return num_blocks_; }
  uint64_t inline_limit() const { return arena_bytes_ / 2 / 64 * 64; }
  uint64_t min_lane_bytes() const { return arena_bytes_ / (num_blocks_ + 2) / 128 * 128; }

  bool closed() const { return header().producer_closed.load() != 0 || header().consumer_closed.load() != 0; }
  // Ends every wait on both sides.
  void close() const {
    header().producer_closed.store(1);
    header().consumer_closed.store(1);
    header().produced.signal();
    header().freed.signal();
  }
  bool in_arena(uint64_t offset, uint64_t bytes) const {
    return offset <= arena_bytes_ && bytes <= arena_bytes_ - offset;
  }

  // Blocks that the consumer has given back, 64 to a word.
  void release_block(uint32_t block) const { bits_[block / 64].fetch_or(uint64_t{1} << (block % 64)); }
  template <typename Visit>
  void take_released(Visit visit) const {
    for (uint32_t word = 0; word < num_blocks_ / 64; ++word) {
      if (bits_[word].load(std::memory_order_relaxed) == 0) continue;
      for (uint64_t bits = bits_[word].exchange(0); bits != 0; bits &= bits - 1)
        visit(word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)));
    }
  }

 private:
  uint8_t* region_;
  RingSlot* slots_;
  std::atomic<uint64_t>* bits_;
  uint8_t* arena_;
  uint64_t arena_bytes_;  // private copies: what the other side may scribble over is read once
  uint32_t num_slots_, num_blocks_;
};

// Adds the time until it dies to a waiting counter, if sleeps() was called.
class WaitClock {
 public:
  explicit WaitClock(RingCounters& counters) : counters_(counters) {}
  void sleeps() {
    if (slept_) return;
    slept_ = true;
    start_ = std::chrono::steady_clock::now();
  }
  ~WaitClock() {
    if (!slept_) return;
    counters_.waits.fetch_add(1, std::memory_order_relaxed);
    counters_.wait_ns.fetch_add((std::chrono::steady_clock::now() - start_) / std::chrono::nanoseconds(1),
                                std::memory_order_relaxed);
  }

 private:
  RingCounters& counters_;
  bool slept_ = false;
  Deadline start_;
};

}  // namespace glt
