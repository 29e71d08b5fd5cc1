// What a partition answers to a question about rows: counts, neighbours and edges, copied out in the asker's width.
#pragma once

#include <algorithm>

#include "core/sample.h"
#include "python/arrays.h"

namespace glt::python {

class RowsAnswer {
 public:
  explicit RowsAnswer(bool with_edge) : with_edge_(with_edge) {}

  void append(const RowSamples& rows) {
    count_.append(rows.count.data(), rows.count.size());
    neighbor_.append(rows.neighbor.data(), rows.neighbor.size());
    edge_.append(rows.edge.data(), rows.edge.size());
  }
  int64_t num_edges() const { return neighbor_.size(); }

  void copy_out(py::array count, py::array neighbor, std::optional<py::array> edge) const {
    require_size(count, "count", count_.size());
    require_size(neighbor, "neighbor", neighbor_.size());
    std::copy_n(count_.data(), count_.size(), write<uint32_t>(count, "count"));
    copy_ids(neighbor_, neighbor, "neighbor");
    if (!edge) return;
    require(with_edge_, "edge was asked for, but the rows were read without edge ids");
    require_size(*edge, "edge", edge_.size());
    copy_ids(edge_, *edge, "edge");
  }

 private:
  static void copy_ids(const Buffer<int64_t>& from, py::array& to, const char* name) {
    if (py::isinstance<py::array_t<int32_t>>(to)) {
      int32_t* out = write<int32_t>(to, name);
      for (int64_t i = 0; i < from.size(); ++i) out[i] = static_cast<int32_t>(from[i]);
    } else {
      std::copy_n(from.data(), from.size(), write<int64_t>(to, name));
    }
  }

  bool with_edge_;
  Buffer<uint32_t> count_;
  Buffer<int64_t> neighbor_, edge_;
};

}  // namespace glt::python
