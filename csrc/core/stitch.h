// The answers of partitions, put back into the order of the question.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/buffer.h"
#include "core/csr.h"
#include "core/sample.h"

namespace glt {

// What one partition answered for the rows that it owns.
struct RowsPart {
  const uint32_t* position;  // [num_rows], where each row stands in the question
  const uint32_t* count;     // [num_rows], edges of each row
  int64_t num_rows;
  Ids neighbor;  // [num_edges]
  Ids edge;      // [num_edges]; unused without edges
  int64_t num_edges;
};

class Stitch {
 public:
  // Hands the rows to consume(rows, first, count) in chunks, in order. Throws std::invalid_argument, before the first
  // chunk, unless the parts answer for each of the `num_rows` rows of `question` (a name for messages) exactly once.
  void run(const std::vector<RowsPart>& parts, int64_t num_rows, bool with_edge, const char* question,
           const std::function<void(const RowSamples&, int64_t, int64_t)>& consume);

 private:
  Buffer<uint32_t> part_of_;  // per row
  Buffer<int64_t> begin_;     // per row: where it begins in its part
  Buffer<uint32_t> count_;    // per row
  RowSamples rows_;
};

}  // namespace glt
