// Asking memory for the rows of a table before they are copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/prefetch.h"

namespace glt {

// How far ahead to ask, and for what: rows of 512 bytes come by 1.2 to 1.6 times faster than without asking on an
// Emerald Rapids, where asking for the first cache won nothing. Of long rows the first lines are enough: the processor
// sees the pattern and fetches the rest.
class RowAhead {
 public:
  explicit RowAhead(int64_t row_bytes)
      : rows(kLinesAhead / std::clamp<int64_t>((row_bytes + kLine - 1) / kLine, 1, kRowLines)),
        bytes_(std::min(row_bytes, kRowLines * kLine)) {}

  void fetch(const std::byte* row) const {
    for (int64_t b = 0; b < bytes_; b += kLine) prefetch(row + b);
  }

  const int64_t rows;  // between the row asked for and the one copied

 private:
  static constexpr int64_t kLine = 64, kRowLines = 8, kLinesAhead = 256;
  const int64_t bytes_;
};

}  // namespace glt
