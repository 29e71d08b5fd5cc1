// A lock of four bytes for as long as it takes to copy a row: many readers, or one writer.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/team.h"

namespace glt {

// Spins, and yields where it must wait long. A writer that waits keeps new readers out, so it is never starved.
// Names as std::shared_lock and std::unique_lock want them.
class RowLock {
 public:
  void lock_shared() {
    Backoff backoff;
    while (state_.fetch_add(1, std::memory_order_acquire) & kWriter) {
      state_.fetch_sub(1, std::memory_order_relaxed);
      while (state_.load(std::memory_order_relaxed) & kWriter) backoff.pause();
    }
  }

  void unlock_shared() { state_.fetch_sub(1, std::memory_order_release); }

  void lock() {
    Backoff backoff;
    while (state_.fetch_or(kWriter, std::memory_order_acquire) & kWriter) backoff.pause();
    while (state_.load(std::memory_order_acquire) & ~kWriter) backoff.pause();  // those that were here before
  }

  void unlock() { state_.fetch_and(~kWriter, std::memory_order_release); }

 private:
  static constexpr uint32_t kWriter = 1u << 31;
  std::atomic<uint32_t> state_{0};  // readers, and whether there is a writer
};

}  // namespace glt
