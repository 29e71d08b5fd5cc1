#include "core/gather.h"

#include "python/arrays.h"
#include "python/without_gil.h"

namespace glt::python {
namespace {

// A table of rows: any dtype, one or more dimensions, contiguous.
int64_t row_bytes(const py::array& a, const char* name) {
  require(a.ndim() >= 1, name, ": expected at least one dimension");
  require_contiguous(a, name);
  int64_t bytes = a.itemsize();
  for (int64_t d = 1; d < a.ndim(); ++d) bytes *= a.shape(d);
  return bytes;
}

}  // namespace

void register_gather(py::module_& m) {
  m.def(
      "gather_rows",
      [](const py::array& table, std::optional<py::array> ids, py::array out, std::optional<py::array> row_of,
         std::optional<py::array> positions, int num_threads, int64_t first_id) {
        GatherSpec spec{};
        spec.row_bytes = row_bytes(table, "table");
        require(row_bytes(out, "out") == spec.row_bytes, "out has rows of ", row_bytes(out, "out"), " bytes, table of ",
                spec.row_bytes, ": expected the same dtype and width");
        require(out.writeable(), "out: expected a writeable array");
        require(num_threads >= 1, "num_threads = ", num_threads, ": expected at least 1");
        spec.table = static_cast<const std::byte*>(table.data());
        spec.num_rows = table.shape(0);
        spec.n = ids ? ids->size() : spec.num_rows;
        if (ids) spec.ids = read<int64_t>(*ids, "ids");
        require(!row_of || first_id == 0, "first_id = ", first_id,
                ": expected none beside row_of, which maps ids to rows");
        spec.first_id = first_id;
        if (row_of) {
          spec.row_of = read<uint32_t>(*row_of, "row_of");
          spec.num_ids = row_of->size();
        }
        if (positions) {
          require_size(*positions, "positions", spec.n);
          spec.positions = read<uint32_t>(*positions, "positions");
        }
        spec.out = static_cast<std::byte*>(out.mutable_data());
        spec.num_out = out.shape(0);
        WithoutGil nogil;
        gather_rows(spec, num_threads);
      },
      "out[positions[i]] = table[row_of[ids[i]]], or table[ids[i] - first_id]; without ids: the rows of table in "
      "order.",
      py::arg("table"), py::arg("ids"), py::arg("out"), py::arg("row_of") = py::none(),
      py::arg("positions") = py::none(), py::arg("num_threads") = 1, py::arg("first_id") = 0);
}

}  // namespace glt::python
