#include "core/row_claims.h"

#include <cstdint>
#include <vector>

#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {
namespace {

py::tuple claim(RowClaims& self, const py::array& ids, const py::array& positions, uint32_t request) {
  const int64_t n = ids.size();
  const int64_t* id = read<int64_t>(ids, "ids");
  require_size(positions, "positions", n);
  const uint32_t* position = read<uint32_t>(positions, "positions");
  py::array_t<int64_t> fresh(n), rows(n);
  py::array_t<uint32_t> fresh_positions(n), row_positions(n);
  int64_t *f = fresh.mutable_data(), *r = rows.mutable_data(), num_fresh;
  uint32_t *fp = fresh_positions.mutable_data(), *rp = row_positions.mutable_data();
  std::vector<RowClaims::Group> groups;
  {
    WithoutGil nogil;
    num_fresh = self.claim(id, position, n, request, f, fp, r, rp, groups);
  }
  py::list others;
  int64_t first = 0;
  for (const RowClaims::Group& group : groups) {
    const py::slice some(first, group.end, 1);
    others.append(py::make_tuple(group.request, rows[some], row_positions[some]));
    first = group.end;
  }
  const py::slice some(0, num_fresh, 1);
  return py::make_tuple(fresh[some], fresh_positions[some], others);
}

}  // namespace

void register_row_claims(py::module_& m) {
  py::class_<RowClaims>(m, "RowClaims", "Which request brings the row of an id; see csrc/core/row_claims.h.")
      .def(py::init<>())
      .def_property_readonly("num_ids", &RowClaims::num_ids)
      .def("claim", &claim,
           "Returns (ids that are new, which `request` now has, their positions, [(request that has others, their rows "
           "in its answer, their positions)]); positions are uint32.",
           py::arg("ids"), py::arg("positions"), py::arg("request"));
}

}  // namespace glt::python
