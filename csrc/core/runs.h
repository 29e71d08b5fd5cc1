// Runs of values whose lengths nobody can predict.
#pragma once

#include <cstdint>

namespace glt {

constexpr int64_t kRunSlack = 8;  // elements behind the end that write_run may overwrite

// Writes out[j] = value(j) for j < n, and something up to out[kRunSlack - 1]: runs are mostly short, and a fixed number
// of stores costs less than leaving a loop at an unpredictable time.
template <typename T, typename Value>
inline void write_run(T* out, int64_t n, const Value& value) {
  for (int64_t j = 0; j < kRunSlack; ++j) out[j] = value(j);
  for (int64_t j = kRunSlack; j < n; ++j) out[j] = value(j);
}

}  // namespace glt
