// The sending side of a shared-memory ring. Every member may be called from any thread.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/arena.h"
#include "core/block_pool.h"
#include "core/shm_ring.h"

namespace glt {

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

}  // namespace glt
