#include "core/has_edges.h"

#include <algorithm>

#include "core/prefetch.h"
#include "core/row_spans.h"
#include "core/sample.h"

namespace glt {
namespace {

template <typename T>
bool contains(const T* ids, int64_t n, int64_t wanted) {
  constexpr int64_t kBlock = 128;  // compared without a branch, which vectorises
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t last = std::min(n, first + kBlock);
    bool found = false;
    for (int64_t e = first; e < last; ++e) found |= static_cast<int64_t>(ids[e]) == wanted;
    if (found) return true;
  }
  return false;
}

}  // namespace

void has_edges(const CsrView& csr, const int64_t* center, const int64_t* neighbor, int64_t n, uint8_t* out,
               const char* name) {
  RowSpans spans;
  for (int64_t first = 0; first < n; first += kChunkRows) {
    const int64_t count = std::min(kChunkRows, n - first);
    find_spans(csr, {center + first, count}, nullptr, -1, spans, name, first);
    std::visit(
        [&](auto* indices) {
          for (int64_t i = 0; i < count; ++i) prefetch(indices + spans.begin[i]);
          for (int64_t i = 0; i < count; ++i)
            out[first + i] = contains(indices + spans.begin[i], spans.degree[i], neighbor[first + i]);
        },
        csr.indices);
  }
}

}  // namespace glt
