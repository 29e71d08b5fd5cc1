// Hands out pieces of a caller's memory, one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace glt::cuda {

// Without memory, only counts them.
class Pieces {
 public:
  explicit Pieces(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t n) {
    const int64_t at = bytes_;
    bytes_ += (n * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
};

}  // namespace glt::cuda
