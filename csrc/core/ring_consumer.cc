#include "core/ring_consumer.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/arena.h"
#include "core/check.h"

namespace glt {

std::shared_ptr<RingConsumer> RingConsumer::create(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper,
                                                   std::shared_ptr<BlockPool> pool) {
  return std::shared_ptr<RingConsumer>(new RingConsumer(region, size, std::move(keeper), std::move(pool)));
}

RingConsumer::RingConsumer(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper,
                           std::shared_ptr<BlockPool> pool)
    : pid_(getpid()), keeper_(std::move(keeper)), pool_(std::move(pool)), view_(region, size) {
  int32_t nobody = 0;
  require(view_.header().consumer_pid.compare_exchange_strong(nobody, pid_), "channel: process ", nobody,
          " already receives from it: one process sends, one receives");
}

RingConsumer::~RingConsumer() {
  close();
}

RingStatus RingConsumer::receive(Deadline deadline, std::optional<Message>& out) {
  RingHeader& header = view_.header();
  std::unique_lock turn(order_, std::defer_lock);
  WaitClock clock(header.received);
  if (!turn.try_lock()) {
    clock.sleeps();
    if (!turn.try_lock_until(deadline)) return RingStatus::kTimeout;
  }
  for (;;) {
    const uint32_t seen = header.produced.now();
    if (header.consumer_closed.load() != 0) return RingStatus::kClosed;
    const bool producer_closed = header.producer_closed.load() != 0;  // before the slot: what it committed comes first
    RingSlot& slot = view_.slot(head_);
    const SlotState state = slot.state.load(std::memory_order_acquire);
    if (state == SlotState::kAbandoned) {
      finish(slot);
      continue;
    }
    if (state == SlotState::kReady || state == SlotState::kChain) {
      Message m;
      bool whole = true;
      if (state == SlotState::kReady)
        take(slot, m);
      else
        whole = assemble(slot, m);
      if (whole) {
        header.received.messages.fetch_add(1, std::memory_order_relaxed);
        header.received.bytes.fetch_add(m.nbytes_, std::memory_order_relaxed);
        finish(slot);
        out.emplace(std::move(m));
        return RingStatus::kOk;
      }
    } else if (state != SlotState::kEmpty && state != SlotState::kReserved) {
      throw std::runtime_error(text("channel: slot ", head_, " is damaged (state ", static_cast<uint32_t>(state), ")"));
    }
    if (producer_closed) return RingStatus::kClosed;
    if (std::chrono::steady_clock::now() >= deadline) return RingStatus::kTimeout;
    clock.sleeps();
    if (header.produced.wait(seen, deadline) == EINTR) return RingStatus::kInterrupted;
  }
}

// A message that lies whole in the arena: hand out its memory, or a copy where too much is held already.
void RingConsumer::take(RingSlot& slot, Message& m) {
  const uint64_t offset = slot.offset, nbytes = slot.nbytes;
  const uint32_t block = slot.block;
  if (!view_.in_arena(offset, nbytes) || block >= view_.num_blocks())
    throw std::runtime_error(text("channel: slot ", head_, " is damaged (", nbytes, " bytes at ", offset,
                                  " of an arena of ", view_.arena_bytes(), ")"));
  m.nbytes_ = nbytes;
  const uint64_t bytes = Arena::aligned(nbytes);
  if (held_bytes_.load() + bytes <= view_.inline_limit() && held_blocks_.load() < view_.num_blocks() / 2) {
    held_bytes_.fetch_add(bytes);
    held_blocks_.fetch_add(1);
    m.data_ = view_.arena() + offset;
    m.block_ = block;
    m.consumer_ = shared_from_this();
    return;
  }
  m.private_.emplace(pool_->acquire(nbytes));
  m.data_ = m.private_->data();
  std::memcpy(m.data_, view_.arena() + offset, nbytes);
  view_.header().received.copied.fetch_add(1, std::memory_order_relaxed);
  view_.release_block(block);  // finish() signals
}

// Reads the pieces that are there. True: the message is whole. A call that has to wait continues in the next one.
bool RingConsumer::assemble(RingSlot& slot, Message& m) {
  const uint64_t piece = slot.lane_bytes, nbytes = slot.nbytes, offset = slot.offset;
  if (piece == 0 || piece > view_.arena_bytes() / 2 || !view_.in_arena(offset, 2 * piece))
    throw std::runtime_error(text("channel: slot ", head_, " is damaged (pieces of ", piece, " bytes at ", offset,
                                  " of an arena of ", view_.arena_bytes(), ")"));
  if (!partial_) partial_.emplace(pool_->acquire(nbytes));
  const uint64_t num_pieces = (nbytes + piece - 1) / piece;
  uint64_t drained = slot.drained.load(std::memory_order_relaxed);
  while (drained < num_pieces && drained < slot.filled.load(std::memory_order_acquire)) {
    const uint64_t start = drained * piece;
    std::memcpy(partial_->data() + start, view_.arena() + offset + drained % 2 * piece,
                std::min(piece, nbytes - start));
    slot.drained.store(++drained, std::memory_order_release);
    if (drained < num_pieces) view_.header().freed.signal();
  }
  if (drained < num_pieces) return false;
  m.private_.emplace(std::move(*partial_));
  partial_.reset();
  m.data_ = m.private_->data();
  m.nbytes_ = nbytes;
  return true;
}

// Gives the slot back and moves on.
void RingConsumer::finish(RingSlot& slot) {
  slot.state.store(SlotState::kEmpty, std::memory_order_release);
  view_.header().head.store(++head_);
  view_.header().freed.signal();
}

// A forked child has a copy of this object and of the messages, and drops them when it likes: the memory is its
// parent's to give back, and the ring its parent's to close.
bool RingConsumer::in_fork() const {
  return getpid() != pid_;
}

void RingConsumer::release(uint32_t block, uint64_t nbytes) {
  if (in_fork()) return;
  held_blocks_.fetch_sub(1);
  held_bytes_.fetch_sub(Arena::aligned(nbytes));
  view_.release_block(block);
  view_.header().freed.signal();
}

RingConsumer::Message::~Message() {
  if (consumer_) consumer_->release(block_, nbytes_);
}

void RingConsumer::close() {
  if (in_fork()) return;
  view_.header().consumer_closed.store(1);
  view_.header().freed.signal();
  view_.header().produced.signal();
}

}  // namespace glt
