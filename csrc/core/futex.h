// Sleeping until another process changes a word of shared memory.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace glt {

using Deadline = std::chrono::steady_clock::time_point;

// An event counter with its sleepers. Nobody owns it and nothing in it is ever locked, so a process that is killed in
// the middle of any call leaves it usable; a sleeper that died costs the others one needless system call per signal.
struct Event {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleepers;

  uint32_t now() const { return count.load(); }

  // Call after the change that the sleepers wait for.
  void signal() {
    count.fetch_add(1);
    if (sleepers.load() != 0) syscall(SYS_futex, &count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  // Sleeps while the count is still `seen`: read it with now(), look whether there is work, and only then wait. Returns
  // 0 after a signal (or for no reason at all), ETIMEDOUT at the deadline, EINTR when a signal handler ran.
  int wait(uint32_t seen, Deadline deadline) {
    // steady_clock is CLOCK_MONOTONIC, which is what a futex without FUTEX_CLOCK_REALTIME counts in.
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
    const timespec until{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    sleepers.fetch_add(1);
    const long rc = syscall(SYS_futex, &count, FUTEX_WAIT_BITSET, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
    const int error = rc == 0 ? 0 : errno;
    sleepers.fetch_sub(1);
    return error == EAGAIN ? 0 : error;
  }
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace glt
