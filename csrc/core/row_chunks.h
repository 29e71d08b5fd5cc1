// Rows shared out to threads, a chunk at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "core/team.h"

namespace glt {

// Calls work(first, last) for chunks of kChunkRows of [0, n), on up to num_threads threads; rethrows the first error.
// `width`: elements per row, for a helper costs more than what it does for few of them.
template <int64_t kChunkRows = 128, typename Work>
void for_row_chunks(int64_t n, int64_t width, int num_threads, const Work& work) {
  constexpr int64_t kWorthElements = int64_t{1} << 15;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    try {
      for (int64_t first; (first = next.fetch_add(kChunkRows)) < n;) work(first, std::min(n, first + kChunkRows));
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next.store(n);
    }
  };
  run_with_helpers(static_cast<int>(std::min<int64_t>(num_threads - 1, n * width / kWorthElements)), run, run);
  if (error) std::rethrow_exception(error);
}

}  // namespace glt
