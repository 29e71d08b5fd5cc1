// What partitions answered, from Python: tuples (position uint32, count uint32, neighbor, edge or None).
#pragma once

#include <vector>

#include "core/stitch.h"
#include "python/arrays.h"

namespace glt::python {

// Views of the arrays in `parts`, which must outlive them.
inline std::vector<RowsPart> rows_parts(const std::vector<py::tuple>& parts, bool with_edge) {
  std::vector<RowsPart> views;
  for (size_t p = 0; p < parts.size(); ++p) {
    require(parts[p].size() == 4, "part ", p, " has ", parts[p].size(),
            " elements: expected (position, count, neighbor, edge)");
    const auto position = parts[p][0].cast<py::array>(), count = parts[p][1].cast<py::array>(),
               neighbor = parts[p][2].cast<py::array>();
    RowsPart view{};
    view.position = read<uint32_t>(position, "position");
    view.count = read<uint32_t>(count, "count");
    view.num_rows = position.size();
    require_size(count, "count", view.num_rows);
    view.neighbor = read_ids(neighbor, "neighbor");
    view.num_edges = neighbor.size();
    if (with_edge) {
      const auto edge = parts[p][3].cast<py::array>();
      require_size(edge, "edge", view.num_edges);
      view.edge = read_ids(edge, "edge");
    }
    views.push_back(view);
  }
  return views;
}

}  // namespace glt::python
