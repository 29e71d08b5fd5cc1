// The receiving side of a shared-memory ring. Messages may be kept and dropped from any thread, in any order.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "core/block_pool.h"
#include "core/shm_ring.h"

namespace glt {

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
