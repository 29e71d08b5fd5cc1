#include "core/gather.h"

#include "core/owner.h"
#include "python/arrays.h"

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
         std::optional<py::array> positions, int num_threads) {
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
        py::gil_scoped_release nogil;
        gather_rows(spec, num_threads);
      },
      "out[positions[i]] = table[row_of[ids[i]]]; without ids: the rows of table in order.", py::arg("table"),
      py::arg("ids"), py::arg("out"), py::arg("row_of") = py::none(), py::arg("positions") = py::none(),
      py::arg("num_threads") = 1);

  m.def(
      "group_by_owner",
      [](const py::array& book, int64_t num_parts, const py::array& ids) {
        const Book view = book_of(book, num_parts);
        const int64_t* p = read<int64_t>(ids, "ids");
        const int64_t n = ids.size();
        require(num_parts >= 1, "num_parts = ", num_parts, ": expected at least 1");
        py::array_t<int64_t> grouped(n), begin(num_parts + 1);
        py::array_t<uint32_t> position(n);
        int64_t *g = grouped.mutable_data(), *b = begin.mutable_data();
        uint32_t* pos = position.mutable_data();
        {
          py::gil_scoped_release nogil;
          group_by_owner(view, p, n, g, pos, b);
        }
        return py::make_tuple(grouped, position, begin);
      },
      "Returns (ids grouped by owner, where each stood, [num_parts + 1] bounds of the groups).", py::arg("book"),
      py::arg("num_parts"), py::arg("ids"));

  m.def(
      "require_owned",
      [](const py::array& book, const py::array& ids, int64_t part) {
        const Book view = book_of(book, part + 1);
        const int64_t* p = read<int64_t>(ids, "ids");
        const int64_t n = ids.size();
        py::gil_scoped_release nogil;
        require_owned(view, p, n, part);
      },
      py::arg("book"), py::arg("ids"), py::arg("part"));
}

}  // namespace glt::python
