#include "core/row_index.h"

#include "python/arrays.h"
#include "python/without_gil.h"

namespace glt::python {

void register_row_index(py::module_& m) {
  py::class_<RowIndex>(m, "RowIndex", "Which ids have a row in a small table; see csrc/core/row_index.h.")
      .def(py::init([](const py::array& ids, int64_t num_ids) {
             require(num_ids >= 0, "num_ids = ", num_ids, ": expected at least 0");
             const int64_t* p = read<int64_t>(ids, "ids");
             const int64_t n = ids.size();
             WithoutGil nogil;
             return RowIndex(p, n, num_ids);
           }),
           py::arg("ids"), py::arg("num_ids"))
      .def_property_readonly("num_rows", &RowIndex::num_rows)
      .def_property_readonly("num_ids", &RowIndex::num_ids)
      .def(
          "split",
          [](const RowIndex& self, const py::array& ids, const py::array& positions) {
            const int64_t n = ids.size();
            const int64_t* id = read<int64_t>(ids, "ids");
            require_size(positions, "positions", n);
            const uint32_t* position = read<uint32_t>(positions, "positions");
            py::array_t<int64_t> rows(n), rest(n);
            py::array_t<uint32_t> row_positions(n), rest_positions(n);
            int64_t *r = rows.mutable_data(), *s = rest.mutable_data(), found;
            uint32_t *rp = row_positions.mutable_data(), *sp = rest_positions.mutable_data();
            {
              WithoutGil nogil;
              found = self.split(id, position, n, r, rp, s, sp);
            }
            const py::slice yes(0, found, 1), no(0, n - found, 1);
            return py::make_tuple(rows[yes], row_positions[yes], rest[no], rest_positions[no]);
          },
          "Returns (rows, their positions, ids without a row, their positions).", py::arg("ids"), py::arg("positions"));
}

}  // namespace glt::python
