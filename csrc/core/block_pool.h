// Recycled blocks of memory: after the first few batches, output memory costs neither a system call nor a page fault.
//
// Writing fresh memory is several times slower than writing memory that is already mapped (the kernel zeroes every
// page first), and malloc hands large blocks back to the kernel on every free. The pool keeps them instead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "core/memory.h"

namespace glt {

// Memory obtained from the kernel by mmap, given back when the object dies.
class Mapping {
 public:
  // Zeroed private memory. From 2 MiB on it is aligned to 2 MiB and huge pages are asked for: one page fault in place
  // of 512. Throws std::bad_alloc when the kernel refuses.
  static Mapping anonymous(size_t bytes);
  // The first `bytes` bytes of a file, shared with all others that map it. The mapping needs no open descriptor
  // afterwards. Throws std::invalid_argument where the file is shorter: touching such pages would be a SIGBUS.
  static Mapping shared(int fd, size_t bytes);

  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Mapping(void* data, size_t bytes) : data_(static_cast<uint8_t*>(data)), bytes_(bytes) {}

  uint8_t* data_;
  size_t bytes_;
};

class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // Page-aligned memory that returns to its pool when it dies, from any thread. It may outlive the pool.
  class Block {
   public:
    Block(Block&&) = default;
    Block& operator=(Block&&) = delete;
    ~Block();
    uint8_t* data() const { return mapping_.data(); }
    size_t nbytes() const { return nbytes_; }
    size_t capacity() const { return mapping_.bytes(); }

   private:
    friend class BlockPool;
    Block(std::weak_ptr<BlockPool> pool, Mapping mapping, size_t nbytes)
        : pool_(std::move(pool)), mapping_(std::move(mapping)), nbytes_(nbytes) {}

    std::weak_ptr<BlockPool> pool_;
    Mapping mapping_;
    size_t nbytes_;
  };

  struct Stats {
    uint64_t acquired = 0;  // blocks handed out so far
    uint64_t reused = 0;    // of these, blocks that had been used before
    size_t free_bytes = 0;  // kept for reuse, at most limit_bytes
    size_t used_bytes = 0;  // capacity of the blocks that are out
    size_t limit_bytes = 0;
  };

  // The one of this process: what batches are made of. A forked child has one without free memory.
  static const std::shared_ptr<BlockPool>& of_process();

  // Keeps at most `limit_bytes` of free memory; beyond that the blocks unused for longest go back to the kernel.
  static std::shared_ptr<BlockPool> create(size_t limit_bytes);

  // At least `nbytes` bytes of undefined content; at most a quarter more for anything above a few pages. Throws
  // std::bad_alloc when the kernel has no more, though it got back what is free here.
  Block acquire(size_t nbytes);
  Stats stats() const;

 private:
  using Free = std::list<Mapping>;

  explicit BlockPool(size_t limit_bytes) { stats_.limit_bytes = limit_bytes; }

  static const int fork_handlers;  // of the process's pool; 0: registered
  Mapping fresh_mapping(size_t bytes);
  void drop_free();
  void give_back(Mapping mapping);

  mutable std::mutex mutex_;
  Free free_;                                      // oldest first
  std::multimap<size_t, Free::iterator> by_size_;  // every element of free_, by capacity
  Stats stats_;
};

// A Buffer whose memory can be handed over: what a batch is written into becomes the batch that the caller gets. The
// memory comes from the pool of the process, and returns there when its last owner lets go of it.
template <typename T>
class PooledBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  T* end() { return data_ + size_; }

  // Begins anew. Room for what the last ones needed, and some more, is kept or got at once, since a buffer that grows
  // is copied; room that they have not needed for a while is not.
  void clear() {
    const int64_t needed = std::max(needed_, size_);
    room_.used(needed + needed / 8);
    needed_ = size_ = 0;
    if (room_.is_too_much(capacity_, kPage)) drop();
  }

  // Room for `more` elements behind the last; pointers into the buffer may move.
  void reserve_more(int64_t more) {
    if (size_ + more > capacity_) grow(size_ + more);
  }
  // Counts elements that were written behind the last one, in room that was reserved.
  void added(int64_t n) { size_ += n; }
  void append(const T* items, int64_t n) {
    reserve_more(n);
    if (n) std::memcpy(end(), items, n * sizeof(T));
    size_ += n;
  }

  // A block that begins with the elements; the buffer is empty afterwards, without memory. The block is its memory
  // where most of that is used, else a copy: a few elements that are kept must not keep the room that others once took.
  BlockPool::Block hand_over() {
    const size_t nbytes = size_ * sizeof(T);
    BlockPool::Block block = block_ && block_->capacity() <= 2 * nbytes ? std::move(*block_) : copied_to(nbytes);
    needed_ = size_;
    drop();
    return block;
  }

 private:
  static constexpr int64_t kPage = 4096 / sizeof(T);  // which blocks are multiples of

  BlockPool::Block copied_to(size_t nbytes) const {
    BlockPool::Block fresh = BlockPool::of_process()->acquire(nbytes);
    if (size_) std::memcpy(fresh.data(), data_, size_ * sizeof(T));
    return fresh;
  }
  void drop() {
    block_.reset();
    data_ = nullptr;
    size_ = capacity_ = 0;
  }
  void grow(int64_t needed) {
    const int64_t wanted = std::max({needed, capacity_ + capacity_ / 2, room_.expected()});
    BlockPool::Block fresh = copied_to(wanted * sizeof(T));
    block_.reset();
    block_.emplace(std::move(fresh));
    data_ = reinterpret_cast<T*>(block_->data());
    capacity_ = static_cast<int64_t>(block_->capacity() / sizeof(T));
  }

  std::optional<BlockPool::Block> block_;
  T* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
  int64_t needed_ = 0;  // elements of the last one
  ExpectedRoom room_;
};

}  // namespace glt
