// Asking memory for the rows of a table before they are copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace glt {

// How far ahead to ask, and for what. Few lines are under way at a time: a core can wait for some 10 to 20, and asking
// for many more (16 rows of 512 bytes) gained nothing on an Emerald Rapids and cost up to a sixth in three of four
// runs. Of long rows the first lines are enough: the processor sees the pattern and fetches the rest.
class RowAhead {
 public:
  explicit RowAhead(int64_t row_bytes)
      : rows(kLinesAhead / std::clamp<int64_t>((row_bytes + kLine - 1) / kLine, 1, kRowLines)),
        bytes_(std::min(row_bytes, kRowLines * kLine)) {}

  void fetch(const std::byte* row) const {
    for (int64_t b = 0; b < bytes_; b += kLine) __builtin_prefetch(row + b, 0, 3);
  }

  const int64_t rows;  // between the row asked for and the one copied

 private:
  static constexpr int64_t kLine = 64, kRowLines = 4, kLinesAhead = 32;
  const int64_t bytes_;
};

}  // namespace glt
