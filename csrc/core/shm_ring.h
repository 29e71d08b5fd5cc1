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

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/block_pool.h"

namespace glt {

using Deadline = std::chrono::steady_clock::time_point;

// Sleeping until another process changes a word of shared memory: an event counter with its sleepers. It has no owner
// and nothing in it is ever locked, so a process that is killed in
// the middle of any call leaves it usable; a sleeper that died costs the others one needless system call per signal.
struct Event {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleepers;

  uint32_t now() const { return count.load(); }

  // Call after the change that the sleepers wait for.
  void signal() {
    count.fetch_add(1);
    if (sleepers.load() != 0) syscall(SYS_futex, &count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  // Sleeps while the count is still `seen`: read it with now(), look whether there is work, and only then wait. Returns
  // 0 after a signal (or for no reason at all), ETIMEDOUT at the deadline, EINTR when a signal handler ran.
  int wait(uint32_t seen, Deadline deadline) {
    // steady_clock is CLOCK_MONOTONIC, which is what a futex without FUTEX_CLOCK_REALTIME counts in.
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
    const timespec until{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    sleepers.fetch_add(1);
    const long rc = syscall(SYS_futex, &count, FUTEX_WAIT_BITSET, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
    const int error = rc == 0 ? 0 : errno;
    sleepers.fetch_sub(1);
    return error == EAGAIN ? 0 : error;
  }
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

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
  std::atomic<int32_t> producer_pid;  // 0: none yet
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

// Which parts of a range of bytes are free: first fit with coalescing. Holds offsets, never touches the bytes.
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

// The sending side. Every member may be called from any thread. A forked child has copies of both sides and of what
// they hold, which it may drop; sending and receiving are its parent's, and are std::runtime_error in the child.
class RingProducer : public std::enable_shared_from_this<RingProducer> {
 public:
  // A message being filled. Dies uncommitted: it is abandoned, and the consumer skips it. The memory must not be
  // written after commit() or abandon().
  class Reservation {
   public:
    ~Reservation() { abandon(); }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    uint8_t* data() const { return data_; }
    uint64_t nbytes() const { return nbytes_; }
    // Never waits. A second call, or one after abandon(), is std::invalid_argument.
    void commit();
    void abandon();

   private:
    friend class RingProducer;
    Reservation() = default;
    std::shared_ptr<RingProducer> producer_;
    uint64_t position_ = 0, nbytes_ = 0;
    uint8_t* data_ = nullptr;
    uint32_t block_ = 0;
    std::shared_ptr<BlockPool::Block> private_;  // set: sent in pieces
    std::atomic<bool> done_{false};
  };

  // `keeper` owns the region; `pool` gives the memory of oversize messages. Throws std::invalid_argument when the
  // ring already has a producer.
  static std::shared_ptr<RingProducer> create(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper,
                                              std::shared_ptr<BlockPool> pool);
  ~RingProducer();

  // Waits until there is room, in the order of the calls. `out` is set where the result is kOk.
  RingStatus reserve(uint64_t nbytes, Deadline deadline, std::shared_ptr<Reservation>& out);

  // No more messages. What was committed can still be received; messages in pieces that the consumer has not yet read
  // are given until the deadline.
  void close(Deadline deadline);
  const RingView& view() const { return view_; }

 private:
  // Messages whose private copy exists at the same time: bounds memory where every message is oversize.
  static constexpr uint32_t kMaxPrivate = 4;

  struct Chain {
    uint64_t position;
    uint64_t nbytes;
    std::shared_ptr<BlockPool::Block> data;
    uint32_t block;   // the lane
    uint64_t offset;  // of the lane in the arena
    uint64_t piece;   // bytes of each of its halves
    uint64_t filled;  // pieces written so far
  };

  RingProducer(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper, std::shared_ptr<BlockPool> pool);
  bool try_reserve(uint64_t nbytes, Reservation& r);
  bool try_private(uint64_t nbytes, Reservation& r);
  bool take_block(std::optional<Arena::Extent> extent, Reservation& r);
  void free_block(uint32_t block);
  void reclaim();
  void commit(Reservation& r);
  void abandon(Reservation& r);
  void stream();
  bool advance(Chain& chain);
  bool in_fork() const;

  const int32_t pid_;
  std::shared_ptr<void> keeper_;
  std::shared_ptr<BlockPool> pool_;
  RingView view_;
  std::timed_mutex order_;  // held by the call whose turn it is to reserve, also while it waits

  std::mutex mutex_;  // guards everything below; never held while waiting or copying
  Arena arena_;
  std::vector<Arena::Extent> extents_;  // by block, bytes == 0: not in use
  std::vector<uint32_t> free_blocks_;
  uint64_t tail_ = 0;  // position of the next message
  uint32_t num_private_ = 0;
  std::list<Chain> chains_;  // committed, not fully sent
  std::condition_variable chains_empty_;
  bool stop_ = false;
  std::thread streamer_;  // started by the first oversize message
};

// The receiving side. Messages may be kept and dropped from any thread, in any order.
class RingConsumer : public std::enable_shared_from_this<RingConsumer> {
 public:
  // The bytes of one message, in shared memory or in a private block. Its death gives the memory back; it keeps the
  // region mapped, also after the ring was closed.
  class Message {
   public:
    Message(Message&& other) = default;
    ~Message();
    uint8_t* data() const { return data_; }
    uint64_t nbytes() const { return nbytes_; }

   private:
    friend class RingConsumer;
    Message() = default;
    std::shared_ptr<RingConsumer> consumer_;  // set: the message lies in the arena
    uint32_t block_ = 0;
    std::optional<BlockPool::Block> private_;
    uint8_t* data_ = nullptr;
    uint64_t nbytes_ = 0;
  };

  static std::shared_ptr<RingConsumer> create(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper,
                                              std::shared_ptr<BlockPool> pool);
  ~RingConsumer();

  // Waits for the next message. `out` is set where the result is kOk. After the producer closed, what it had committed
  // comes first, then kClosed. A damaged slot is std::runtime_error.
  RingStatus receive(Deadline deadline, std::optional<Message>& out);

  // Nothing more is wanted: every wait of the producer ends.
  void close();
  // Bytes of the arena that live messages hold.
  uint64_t held_bytes() const { return held_bytes_.load(); }
  const RingView& view() const { return view_; }

 private:
  RingConsumer(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper, std::shared_ptr<BlockPool> pool);
  void take(RingSlot& slot, Message& m);
  bool assemble(RingSlot& slot, Message& m);
  void finish(RingSlot& slot);
  void release(uint32_t block, uint64_t nbytes);
  bool in_fork() const;

  const int32_t pid_;
  std::shared_ptr<void> keeper_;
  std::shared_ptr<BlockPool> pool_;
  RingView view_;
  std::timed_mutex order_;                   // one receive at a time
  uint64_t head_ = 0;                        // position of the next message
  std::optional<BlockPool::Block> partial_;  // the pieces so far of the oversize message at head_
  std::atomic<uint64_t> held_bytes_{0};
  std::atomic<uint32_t> held_blocks_{0};
};

}  // namespace glt
