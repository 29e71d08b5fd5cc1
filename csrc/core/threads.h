// Helper threads for one call at a time each: started on first use, kept, shared by all callers of the process; and the
// ways to share work out to them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

namespace glt {

// Runs `main` on the calling thread and offers `helper` to up to `num_helpers` pool threads meanwhile; returns when
// `main` and every helper that started have returned. A helper may start late or never, so `main` must be able to
// finish the work alone, and `helper` must return once no work is left. Neither may throw.
void run_with_helpers(int num_helpers, const std::function<void()>& main, const std::function<void()>& helper);

// Gives the processor to another thread of a spinning wait: a pause at first, then a yield, since on a machine
// with fewer cores than threads the one waited for may need this very core.
class Backoff {
 public:
  void pause();

 private:
  int spins_ = 0;
};

// Shares [0, n) out to the calling thread and up to `num_helpers` others, `chunk` at a time. Each thread calls
// make_work() once, for buffers of its own, and what it got as work(first, last) for each chunk. Rethrows the first
// error.
template <typename MakeWork>
void for_chunks_with(int64_t n, int64_t chunk, int64_t num_helpers, const MakeWork& make_work) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    try {
      auto work = make_work();
      for (int64_t first; (first = next.fetch_add(chunk, std::memory_order_relaxed)) < n;)
        work(first, std::min(n, first + chunk));
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next.store(n);
    }
  };
  run_with_helpers(static_cast<int>(num_helpers), run, run);
  if (error) std::rethrow_exception(error);
}

// The same where all threads share one work(first, last).
template <typename Work>
void for_chunks(int64_t n, int64_t chunk, int64_t num_helpers, const Work& work) {
  for_chunks_with(n, chunk, num_helpers, [&] { return [&work](int64_t first, int64_t last) { work(first, last); }; });
}

// The same for rows of `width` elements on up to num_threads threads: a helper costs more than what it does for few.
template <typename Work>
void for_row_chunks(int64_t n, int64_t chunk, int64_t width, int num_threads, const Work& work) {
  constexpr int64_t kMinElements = int64_t{1} << 15;
  for_chunks(n, chunk, std::min<int64_t>(num_threads - 1, n * width / kMinElements), work);
}

// Called now and then with the bytes dealt with since the last call, always on the thread that started the work. What
// it throws ends the work.
using Progress = std::function<void(int64_t num_bytes)>;

// Numbered pieces of work, shared out to threads; some of their steps taken in order.
class WorkItems {
 public:
  WorkItems(int64_t num_items, int num_threads, const Progress& progress)
      : num_items_(num_items), num_threads_(num_threads), progress_(progress) {}

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
          if (is_caller && progress_) progress_(done_.exchange(0, std::memory_order_relaxed));
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
    if (progress_) progress_(done_.exchange(0));
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
  const Progress& progress_;
  std::atomic<int64_t> next_{0}, turn_{0}, done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace glt
