#include "core/stitch.h"

#include <algorithm>

#include "core/check.h"

namespace glt {

void Stitch::run(const std::vector<RowsPart>& parts, int64_t num_rows, bool with_edge, const char* question,
                 const std::function<void(const RowSamples&, int64_t, int64_t)>& consume) {
  part_of_.resize(num_rows);
  begin_.resize(num_rows);
  count_.resize(num_rows);
  std::fill_n(part_of_.data(), num_rows, UINT32_MAX);
  for (size_t p = 0; p < parts.size(); ++p) {
    const RowsPart& part = parts[p];
    int64_t offset = 0;
    for (int64_t i = 0; i < part.num_rows; ++i) {
      const uint32_t at = part.position[i];
      require(at < num_rows && part_of_[at] == UINT32_MAX, "part ", p, " answers for row ", at, " of the ", question,
              ", which has ", num_rows, " rows: expected every row once");
      part_of_[at] = static_cast<uint32_t>(p);
      begin_[at] = offset;
      count_[at] = part.count[i];
      offset += part.count[i];
    }
    require(offset == part.num_edges, "part ", p, " has ", part.num_edges, " edges, its counts add up to ", offset);
  }
  const uint32_t* missing = std::find(part_of_.data(), part_of_.data() + num_rows, UINT32_MAX);
  require(missing == part_of_.data() + num_rows, "no part answers for row ", missing - part_of_.data(), " of the ",
          question);

  const auto append = [](Buffer<int64_t>& to, const Ids& ids, int64_t begin, int64_t n) {
    to.reserve_more(n);
    std::visit([&](auto* from) { std::copy_n(from + begin, n, to.end()); }, ids);
    to.added(n);
  };
  for (int64_t first = 0; first < num_rows; first += kChunkRows) {
    const int64_t chunk = std::min(kChunkRows, num_rows - first);
    rows_.clear();
    rows_.count.append(count_.data() + first, chunk);
    for (int64_t r = first; r < first + chunk; ++r) {
      const RowsPart& part = parts[part_of_[r]];
      append(rows_.neighbor, part.neighbor, begin_[r], count_[r]);
      if (with_edge) append(rows_.edge, part.edge, begin_[r], count_[r]);
    }
    consume(rows_, first, chunk);
  }
}

}  // namespace glt
