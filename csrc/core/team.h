// Helper threads for one call at a time each: started on first use, kept, shared by all callers of the process.
#pragma once

#include <functional>

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

}  // namespace glt
