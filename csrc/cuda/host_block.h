// A block of threads as the host runs it: for tests, and where there is no GPU.
//
// Kernel bodies are written against a block: each(step) runs `step` for all its threads and waits for them. A GPU runs
// the threads side by side. The host runs them one after another, in an order of its choice, since no result may
// depend on it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "cuda/threads.h"

namespace glt::cuda {

class HostBlock {
 public:
  HostBlock(int x, int y, const std::array<int, kThreads>& order) : x_(x), y_(y), order_(order) {}

  int x() const { return x_; }
  int y() const { return y_; }

  template <typename Step>
  void each(const Step& step) const {
    for (const int thread : order_) step(thread);
  }

  // Blocks may run on several threads, so words that blocks share are changed by atomic operations here too.
  static void atomic_max(uint32_t* word, uint32_t value) {
    change(word, value, [](auto a, auto b) { return a < b; });
  }
  static void atomic_max(uint64_t* word, uint64_t value) {
    change(word, value, [](auto a, auto b) { return a < b; });
  }
  static void atomic_min(uint64_t* word, uint64_t value) {
    change(word, value, [](auto a, auto b) { return a > b; });
  }
  // These return what was there.
  static uint64_t atomic_add(uint64_t* word, uint64_t value) {
    return std::atomic_ref(*word).fetch_add(value, std::memory_order_relaxed);
  }
  static uint32_t compare_and_swap(uint32_t* word, uint32_t expected, uint32_t value) {
    std::atomic_ref(*word).compare_exchange_strong(expected, value, std::memory_order_relaxed);
    return expected;
  }
  template <typename Word>
  static Word load(const Word* word) {
    return std::atomic_ref(*const_cast<Word*>(word)).load(std::memory_order_relaxed);
  }

 private:
  template <typename T, typename Loses>
  static void change(T* word, T value, const Loses& loses) {
    std::atomic_ref shared(*word);
    T seen = shared.load(std::memory_order_relaxed);
    while (loses(seen, value) && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }

  int x_, y_;
  const std::array<int, kThreads>& order_;
};

}  // namespace glt::cuda
