// The two ends of a ring: the producer, then the consumer.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/block_pool.h"
#include "core/check.h"
#include "core/shm_ring.h"

namespace glt {
namespace {

// The position in the ring, the free memory and the locks of a side are its process's.
void refuse_fork(int32_t pid, const char* verb) {
  if (const int32_t own = getpid(); own != pid)
    throw std::runtime_error(text("channel: this process (pid ", own, ") is a fork of the one that ", verb, " (pid ",
                                  pid, "): go on there, or give this process a channel of its own"));
}

}  // namespace

std::shared_ptr<RingProducer> RingProducer::create(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper,
                                                   std::shared_ptr<BlockPool> pool) {
  return std::shared_ptr<RingProducer>(new RingProducer(region, size, std::move(keeper), std::move(pool)));
}

RingProducer::RingProducer(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper,
                           std::shared_ptr<BlockPool> pool)
    : pid_(getpid()),
      keeper_(std::move(keeper)),
      pool_(std::move(pool)),
      view_(region, size),
      arena_(view_.arena_bytes()) {
  int32_t other = 0;
  require(view_.header().producer_pid.compare_exchange_strong(other, pid_), "channel: process ", other,
          " already sends on it: one process sends, one receives");
  extents_.resize(view_.num_blocks());
  for (uint32_t block = view_.num_blocks(); block > 0; --block) free_blocks_.push_back(block - 1);
}

// A forked child has a copy of this object, but neither its streaming thread nor anything to say on the ring.
bool RingProducer::in_fork() const {
  return getpid() != pid_;
}

RingProducer::~RingProducer() {
  if (in_fork()) {
    if (streamer_.joinable()) streamer_.detach();
    return;
  }
  close(std::chrono::steady_clock::now());  // a reservation keeps the producer alive: none is left
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  view_.header().freed.signal();
  if (streamer_.joinable()) streamer_.join();
}

RingStatus RingProducer::reserve(uint64_t nbytes, Deadline deadline, std::shared_ptr<Reservation>& out) {
  refuse_fork(pid_, "sends on it");
  require(nbytes >= 1 && nbytes <= RingView::kMaxArena, "message of ", nbytes, " bytes: expected at least 1");
  std::unique_lock turn(order_, std::defer_lock);
  WaitClock clock(view_.header().sent);
  if (!turn.try_lock()) {
    clock.sleeps();
    if (!turn.try_lock_until(deadline)) return RingStatus::kTimeout;
  }
  std::shared_ptr<Reservation> r(new Reservation);
  r->done_ = true;  // nothing to abandon yet
  Event& freed = view_.header().freed;
  for (;;) {
    const uint32_t seen = freed.now();
    if (view_.closed()) return RingStatus::kClosed;
    if (try_reserve(nbytes, *r)) break;
    if (std::chrono::steady_clock::now() >= deadline) return RingStatus::kTimeout;
    clock.sleeps();
    if (freed.wait(seen, deadline) == EINTR) return RingStatus::kInterrupted;
  }
  r->producer_ = shared_from_this();
  r->done_ = false;
  out = std::move(r);
  return RingStatus::kOk;
}

// Takes a slot and memory for the next message if both are free now.
bool RingProducer::try_reserve(uint64_t nbytes, Reservation& r) {
  std::lock_guard lock(mutex_);
  RingSlot& slot = view_.slot(tail_);
  if (slot.state.load(std::memory_order_acquire) != SlotState::kEmpty) return false;
  // Before reclaiming: a consumer that reads everything in between must not look like one that keeps everything.
  const bool all_read = view_.header().head.load() == tail_;
  reclaim();
  if (nbytes <= view_.inline_limit() && take_block(arena_.allocate(nbytes), r)) {
    r.data_ = view_.arena() + extents_[r.block_].offset;
  } else if (nbytes > view_.inline_limit() || all_read) {
    if (!try_private(nbytes, r)) return false;
  } else {
    return false;  // it fits once the consumer has read what is under way
  }
  r.position_ = tail_++;
  r.nbytes_ = nbytes;
  slot.state.store(SlotState::kReserved, std::memory_order_release);
  return true;
}

// A private buffer, and the lane through which it will be sent: taken now, so that no later message can use up the
// room that this one needs to get through.
bool RingProducer::try_private(uint64_t nbytes, Reservation& r) {
  if (num_private_ == kMaxPrivate) return false;
  const uint64_t least = view_.min_lane_bytes();
  const uint64_t most = std::max(least, std::min(Arena::aligned(nbytes), view_.arena_bytes() / 8 / 128 * 128));
  if (!take_block(arena_.allocate_between(least, most), r)) return false;
  try {
    r.private_ = std::make_shared<BlockPool::Block>(pool_->acquire(nbytes));
  } catch (const std::bad_alloc&) {
    free_block(r.block_);
    throw;
  }
  r.data_ = r.private_->data();
  ++num_private_;
  return true;
}

bool RingProducer::take_block(std::optional<Arena::Extent> extent, Reservation& r) {
  if (!extent) return false;
  if (free_blocks_.empty()) {
    arena_.release(*extent);
    return false;
  }
  r.block_ = free_blocks_.back();
  free_blocks_.pop_back();
  extents_[r.block_] = *extent;
  return true;
}

void RingProducer::free_block(uint32_t block) {
  if (extents_[block].bytes == 0) return;  // a bit set by mistake on the other side frees nothing twice
  arena_.release(std::exchange(extents_[block], {}));
  free_blocks_.push_back(block);
}

void RingProducer::reclaim() {
  view_.take_released([this](uint32_t block) { free_block(block); });
}

void RingProducer::Reservation::commit() {
  refuse_fork(producer_->pid_, "sends on it");
  require(!done_.exchange(true), "channel slot: it was committed or abandoned before");
  producer_->commit(*this);
}

void RingProducer::Reservation::abandon() {
  if (!done_.exchange(true)) producer_->abandon(*this);
}

void RingProducer::commit(Reservation& r) {
  RingHeader& header = view_.header();
  RingSlot& slot = view_.slot(r.position_);
  slot.nbytes = r.nbytes_;
  slot.block = r.block_;
  header.sent.messages.fetch_add(1, std::memory_order_relaxed);
  header.sent.bytes.fetch_add(r.nbytes_, std::memory_order_relaxed);
  if (!r.private_) {
    slot.offset = static_cast<uint64_t>(r.data_ - view_.arena());
    slot.state.store(SlotState::kReady, std::memory_order_release);
    header.produced.signal();
    return;
  }
  header.sent.oversize.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    const Arena::Extent lane = extents_[r.block_];
    const uint64_t piece = lane.bytes / 128 * 64;
    slot.offset = lane.offset;
    slot.lane_bytes = piece;
    slot.filled.store(0);
    slot.drained.store(0);
    chains_.push_back({r.position_, r.nbytes_, r.private_, r.block_, lane.offset, piece, 0});
    if (!streamer_.joinable()) streamer_ = std::thread([this] { stream(); });
    slot.state.store(SlotState::kChain, std::memory_order_release);
  }
  header.produced.signal();
  header.freed.signal();  // the streaming thread sleeps there too
}

void RingProducer::abandon(Reservation& r) {
  if (in_fork()) return;
  {
    std::lock_guard lock(mutex_);
    free_block(r.block_);
    if (r.private_) --num_private_;
  }
  view_.slot(r.position_).state.store(SlotState::kAbandoned, std::memory_order_release);
  view_.header().produced.signal();
  view_.header().freed.signal();
}

// Sends the oversize messages, all of them side by side: each has its own lane, so none waits for a message that is
// still being filled.
void RingProducer::stream() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the threads that run Python
  RingHeader& header = view_.header();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const uint32_t seen = header.freed.now();
    for (auto chain = chains_.begin(); chain != chains_.end() && !stop_;) {
      lock.unlock();  // elements of a list stay where they are, and only this thread removes any
      const bool finished = header.consumer_closed.load() != 0 || advance(*chain);
      lock.lock();
      if (!finished) {
        ++chain;
        continue;
      }
      free_block(chain->block);
      --num_private_;
      chain = chains_.erase(chain);
      header.freed.signal();
    }
    if (chains_.empty()) chains_empty_.notify_all();
    if (stop_) break;
    lock.unlock();
    header.freed.wait(seen, Deadline::max());  // ends at once if anything was freed since `seen`
    lock.lock();
  }
}

// Writes every piece that has room. True: the consumer has read all of them.
bool RingProducer::advance(Chain& chain) {
  // After the last piece the slot may belong to a later message: then nothing of it is written any more, and the head
  // tells that this one is done.
  RingSlot& slot = view_.slot(chain.position);
  const uint64_t num_pieces = (chain.nbytes + chain.piece - 1) / chain.piece;
  while (chain.filled < num_pieces && chain.filled - slot.drained.load(std::memory_order_acquire) < 2) {
    const uint64_t start = chain.filled * chain.piece;
    std::memcpy(view_.arena() + chain.offset + chain.filled % 2 * chain.piece, chain.data->data() + start,
                std::min(chain.piece, chain.nbytes - start));
    slot.filled.store(++chain.filled, std::memory_order_release);
    view_.header().produced.signal();
  }
  return view_.header().head.load() > chain.position;
}

void RingProducer::close(Deadline deadline) {
  if (in_fork()) return;
  {
    std::unique_lock lock(mutex_);
    chains_empty_.wait_until(lock, deadline, [this] { return chains_.empty(); });
  }
  RingHeader& header = view_.header();
  header.producer_closed.store(1);
  header.produced.signal();
  header.freed.signal();
}

std::shared_ptr<RingConsumer> RingConsumer::create(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper,
                                                   std::shared_ptr<BlockPool> pool) {
  return std::shared_ptr<RingConsumer>(new RingConsumer(region, size, std::move(keeper), std::move(pool)));
}

RingConsumer::RingConsumer(uint8_t* region, uint64_t size, std::shared_ptr<void> keeper,
                           std::shared_ptr<BlockPool> pool)
    : pid_(getpid()), keeper_(std::move(keeper)), pool_(std::move(pool)), view_(region, size) {
  int32_t other = 0;
  require(view_.header().consumer_pid.compare_exchange_strong(other, pid_), "channel: process ", other,
          " already receives from it: one process sends, one receives");
}

RingConsumer::~RingConsumer() {
  close();
}

RingStatus RingConsumer::receive(Deadline deadline, std::optional<Message>& out) {
  refuse_fork(pid_, "receives from it");
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
