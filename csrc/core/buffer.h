// A growable array that never initialises what it grows by and keeps its memory between uses.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace glt {

// Asks for 2 MiB pages where the kernel offers them on request: random reads miss the TLB far less often.
inline void advise_huge_pages(void* data, size_t bytes) {
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHuge - 1) & ~(kHuge - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHuge - 1);
  // Advice only: a kernel without huge pages refuses, and everything works as before.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { std::free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  T* end() { return data_ + size_; }
  void clear() { size_ = 0; }

  // Room for `more` elements behind the last; pointers into the buffer may move.
  void reserve_more(int64_t more) {
    if (size_ + more > capacity_) grow(std::max(size_ + more, capacity_ + capacity_ / 2));
  }
  // Counts elements that were written behind the last one, in room that was reserved.
  void added(int64_t n) { size_ += n; }
  void push_back(T value) {
    reserve_more(1);
    data_[size_++] = value;
  }
  void resize(int64_t n) {
    if (n > capacity_) grow(n);
    size_ = n;
  }
  void append(const T* items, int64_t n) {
    reserve_more(n);
    if (n) std::memcpy(data_ + size_, items, n * sizeof(T));
    size_ += n;
  }

 private:
  void grow(int64_t capacity) {
    // Whole cache lines, and whole huge pages once it is large.
    const size_t align = capacity * sizeof(T) >= (size_t{4} << 20) ? size_t{2} << 20 : 64;
    const size_t bytes = (capacity * sizeof(T) + align - 1) / align * align;
    void* fresh = std::aligned_alloc(align, bytes);
    if (!fresh) throw std::bad_alloc();
    if (align > 64) advise_huge_pages(fresh, bytes);
    if (size_) std::memcpy(fresh, data_, size_ * sizeof(T));
    std::free(data_);
    data_ = static_cast<T*>(fresh);
    capacity_ = static_cast<int64_t>(bytes / sizeof(T));
  }
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
};

}  // namespace glt
