// A Buffer whose memory can be handed over: what a batch is written into becomes the batch that the caller gets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "core/block_pool.h"

namespace glt {

// The memory comes from the pool of the process, and returns there when its last owner lets go of it.
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
    needed_ = std::max(needed_, size_);
    expected_ = std::max(needed_ + needed_ / 8, expected_ - expected_ / 8);
    needed_ = size_ = 0;
    if (capacity_ > 2 * expected_ + kPage) drop();
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
  // where most of that is used, else a copy: whoever keeps a few elements shall not keep the room that others once
  // took.
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
    const int64_t wanted = std::max({needed, capacity_ + capacity_ / 2, expected_});
    BlockPool::Block fresh = copied_to(wanted * sizeof(T));
    block_.reset();
    block_.emplace(std::move(fresh));
    data_ = reinterpret_cast<T*>(block_->data());
    capacity_ = static_cast<int64_t>(block_->capacity() / sizeof(T));
  }

  std::optional<BlockPool::Block> block_;
  T* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
  int64_t needed_ = 0, expected_ = 0;  // elements of the last one; of the next one, at most, unless it is unusual
};

}  // namespace glt
