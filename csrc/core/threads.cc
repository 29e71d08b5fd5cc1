#include "core/threads.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "core/check.h"

namespace glt {
namespace {

// One call that wants helpers. Lives on the caller's stack: the caller withdraws it before it returns.
struct Job {
  const std::function<void()>* helper;
  int wanted;      // helpers still to start
  int active = 0;  // helpers running now
};

constexpr std::chrono::microseconds kSpin{100};

class Team {
 public:
  // The pool of this process: threads do not survive a fork, so a child starts a pool of its own and leaves the
  // parent's memory alone. Never destroyed, since its threads may outlive static destructors. Found without a lock:
  // a fork would copy one that another thread holds, and no thread of the child would ever open it.
  static Team& shared() {
    Team* team = current.load(std::memory_order_acquire);
    if (team) return *team;
    require(fork_handler == 0, "pthread_atfork: error ", fork_handler, " when glt was loaded; out of memory?");
    auto* made = new Team;  // starts no thread yet, so one that loses the race below costs nothing
    if (current.compare_exchange_strong(team, made, std::memory_order_acq_rel)) return *made;
    delete made;
    return *team;
  }

  void run(int num_helpers, const std::function<void()>& main, const std::function<void()>& helper) {
    Job job{&helper, num_helpers};
    {
      const std::lock_guard lock(mutex_);
      while (num_threads_ < num_helpers) {
        std::thread([this] { serve(); }).detach();
        ++num_threads_;
      }
      jobs_.push_back(&job);
      num_jobs_.store(jobs_.size(), std::memory_order_relaxed);
    }
    wake_.notify_all();
    main();
    std::unique_lock lock(mutex_);
    if (std::erase(jobs_, &job)) num_jobs_.store(jobs_.size(), std::memory_order_relaxed);
    done_.wait(lock, [&] { return job.active == 0; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return !jobs_.empty(); });
      Job* job = jobs_.front();
      ++job->active;
      if (--job->wanted == 0) jobs_.pop_front();
      num_jobs_.store(jobs_.size(), std::memory_order_relaxed);
      lock.unlock();
      (*job->helper)();
      lock.lock();
      if (--job->active == 0) done_.notify_all();
      lock.unlock();
      spin();
      lock.lock();
    }
  }

  // One call often follows another at once (the hops of a batch, then its copies), and to wake a thread that sleeps
  // takes longer than most of them: a helper looks for the next one a moment longer before it sleeps.
  void spin() const {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    Backoff backoff;
    while (num_jobs_.load(std::memory_order_relaxed) == 0 && std::chrono::steady_clock::now() < until) backoff.pause();
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Job*> jobs_;
  std::atomic<size_t> num_jobs_{0};  // jobs_.size(), to be read without the lock
  int num_threads_ = 0;

  static std::atomic<Team*> current;
  static const int fork_handler;  // 0: registered
};

std::atomic<Team*> Team::current = nullptr;
// When the library is loaded: a static inside a function would bring a lock of its own.
const int Team::fork_handler = pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); });

}  // namespace

void run_with_helpers(int num_helpers, const std::function<void()>& main, const std::function<void()>& helper) {
  if (num_helpers <= 0)
    main();
  else
    Team::shared().run(num_helpers, main, helper);
}

void Backoff::pause() {
  if (++spins_ < 200) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  } else {
    sched_yield();
  }
}

}  // namespace glt
