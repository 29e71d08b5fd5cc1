// The native row table as Python holds it, for other bindings that change its rows.
#pragma once

#include <optional>
#include <string>

#include "core/row_table.h"
#include "python/arrays.h"

namespace glt::python {

// The table, and the array that it is of.
class PyRowTable {
 public:
  explicit PyRowTable(py::array array);

  RowTable& table() { return table_; }
  const py::array& array() const { return array_; }

  void read(const std::optional<py::array>& rows, int64_t first, const py::array& out, int num_threads) const;
  void write(const std::optional<py::array>& rows, int64_t first, const py::array& values, int num_threads);
  void add(const std::optional<py::array>& rows, int64_t first, const py::array& values, const std::string& dtype,
           int num_threads);

 private:
  py::array array_;
  RowTable table_;
};

}  // namespace glt::python
