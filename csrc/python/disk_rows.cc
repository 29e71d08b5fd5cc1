#include "core/disk_rows.h"

#include <cstdint>
#include <string>
#include <utility>

#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {

void register_disk_rows(py::module_& m) {
  py::class_<DiskRows>(m, "DiskRows", "Rows of a table in a file; see csrc/core/disk_rows.h.")
      .def(py::init<std::string, int64_t, int64_t, int64_t, double>(), py::arg("path"), py::arg("offset"),
           py::arg("row_bytes"), py::arg("num_rows"), py::arg("timeout_s"))
      .def_property_readonly("why_buffered", &DiskRows::why_buffered,
                             "Why rows are read through the page cache, one after the other; empty: they are not.")
      .def(
          "read",
          [](const DiskRows& self, const py::array& rows, py::array out) {
            const int64_t n = rows.size();
            const int64_t* row = read<int64_t>(rows, "rows");
            require(row_bytes_of(out, "out") == self.row_bytes() && out.shape(0) == n && out.writeable(),
                    "out: expected a writeable array of ", n, " rows of ", self.row_bytes(), " bytes");
            auto* to = static_cast<std::byte*>(out.mutable_data());
            WithoutGil nogil;
            const DiskRows::Reads done = self.read(row, n, to);
            return std::pair(done.num_reads, done.num_bytes);
          },
          "out[i] = row rows[i]; returns how many reads that took, and of how many bytes. OSError if one failed.",
          py::arg("rows"), py::arg("out"));
}

}  // namespace glt::python
