// Recycled blocks of memory: after the first few batches, output memory costs neither a system call nor a page fault.
//
// Writing fresh memory is several times slower than writing memory that is already mapped (the kernel zeroes every
// page first), and malloc hands large blocks back to the kernel on every free. The pool keeps them instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "core/mapping.h"

namespace glt {

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

}  // namespace glt
