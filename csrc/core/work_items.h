// Numbered pieces of work, shared out to threads; some of their steps taken in order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

#include "core/team.h"

namespace glt {

// Told of bytes that were dealt with, now and then, always on the thread that started the work. What it throws ends it.
using Tick = std::function<void(int64_t num_bytes)>;

class WorkItems {
 public:
  WorkItems(int64_t num_items, int num_threads, const Tick& tick)
      : num_items_(num_items), num_threads_(num_threads), tick_(tick) {}

  // Hands the items 0, 1, 2, ... in this order to the threads. Each calls make_worker() once, for buffers of its own,
  // and the worker it got for each item: worker(item) returns the bytes that it dealt with. Rethrows the first error.
  template <typename MakeWorker>
  void run(const MakeWorker& make_worker) {
    const auto serve = [&](bool is_caller) {
      try {
        if (next_.load(std::memory_order_relaxed) >= num_items_) return;
        auto worker = make_worker();
        for (int64_t item; !stop_.load(std::memory_order_relaxed) && (item = next_.fetch_add(1)) < num_items_;) {
          done_.fetch_add(worker(item), std::memory_order_relaxed);
          if (is_caller && tick_) tick_(done_.exchange(0, std::memory_order_relaxed));
        }
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        stop_.store(true, std::memory_order_release);
      }
    };
    const int helpers = static_cast<int>(std::min<int64_t>(num_threads_, num_items_)) - 1;
    run_with_helpers(helpers, [&] { serve(true); }, [&] { serve(false); });
    if (error_) std::rethrow_exception(error_);
    if (tick_) tick_(done_.exchange(0));
  }

  // Called by a worker: step() once the steps of all items before this one are taken. So an output that items append
  // to is the same however many threads there are.
  template <typename Step>
  void in_turn(int64_t item, const Step& step) {
    Backoff backoff;
    while (turn_.load(std::memory_order_acquire) != item) {
      if (stop_.load(std::memory_order_acquire)) throw Stopped();
      backoff.pause();
    }
    step();
    turn_.store(item + 1, std::memory_order_release);
  }

 private:
  struct Stopped {};  // another thread failed, and its error comes first

  const int64_t num_items_;
  const int num_threads_;
  const Tick& tick_;
  std::atomic<int64_t> next_{0}, turn_{0}, done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace glt
