#include "python/row_table.h"

#include <map>
#include <utility>

#include "core/row_values.h"
#include "python/without_gil.h"

namespace glt::python {
namespace {

// An array of rows as bytes.
struct Rows {
  std::byte* data;
  int64_t num_rows, row_bytes;
};

Rows rows_of(const py::array& a, const char* name, bool writes) {
  require(a.ndim() >= 1, name, ": expected at least one dimension");
  require_contiguous(a, name);
  require(!writes || a.writeable(), name, ": expected a writeable array");
  int64_t bytes = a.itemsize();
  for (int64_t d = 1; d < a.ndim(); ++d) bytes *= a.shape(d);
  return {static_cast<std::byte*>(const_cast<void*>(a.data())), a.shape(0), bytes};
}

Number number_of(const std::string& dtype) {
  static const std::map<std::string, Number> kNumbers{
      {"int8", Number::kInt8},         {"uint8", Number::kInt8},         {"int16", Number::kInt16},
      {"uint16", Number::kInt16},      {"int32", Number::kInt32},        {"uint32", Number::kInt32},
      {"int64", Number::kInt64},       {"uint64", Number::kInt64},       {"float16", Number::kFloat16},
      {"float32", Number::kFloat32},   {"float64", Number::kFloat64},    {"bfloat16", Number::kBfloat16},
      {"complex64", Number::kFloat32}, {"complex128", Number::kFloat64}, {"complex32", Number::kFloat16},
  };
  const auto found = kNumbers.find(dtype);
  if (found == kNumbers.end())
    throw py::type_error(text("rows of dtype ", dtype,
                              " cannot be added to: expected numbers of 16 bits or more, or "
                              "integers; keep them in a wider dtype"));
  return found->second;
}

RowTable table_of(const py::array& array) {
  const Rows rows = rows_of(array, "table", true);
  return {rows.data, rows.num_rows, rows.row_bytes};
}

Rows checked(const RowTable& table, const py::array& a, const char* name, bool writes) {
  const Rows rows = rows_of(a, name, writes);
  require(rows.row_bytes == table.row_bytes(), name, " has rows of ", rows.row_bytes, " bytes, the table of ",
          table.row_bytes(), ": expected the same dtype and width");
  return rows;
}

SomeRows some_of(const std::optional<py::array>& numbers, int64_t first, const Rows& rows) {
  if (numbers) require_size(*numbers, "rows", rows.num_rows);
  return {numbers ? read<int64_t>(*numbers, "rows") : nullptr, first, rows.num_rows};
}

}  // namespace

PyRowTable::PyRowTable(py::array array) : array_(std::move(array)), table_(table_of(array_)) {}

void PyRowTable::read(const std::optional<py::array>& rows, int64_t first, const py::array& out,
                      int num_threads) const {
  const Rows to = checked(table_, out, "out", true);
  const SomeRows some = some_of(rows, first, to);
  checked_threads(num_threads);
  WithoutGil nogil;
  table_.read(some, to.data, num_threads);
}

void PyRowTable::write(const std::optional<py::array>& rows, int64_t first, const py::array& values, int num_threads) {
  const Rows from = checked(table_, values, "values", false);
  const SomeRows some = some_of(rows, first, from);
  checked_threads(num_threads);
  WithoutGil nogil;
  table_.write(some, from.data, num_threads);
}

void PyRowTable::add(const std::optional<py::array>& rows, int64_t first, const py::array& values,
                     const std::string& dtype, int num_threads) {
  const Rows from = checked(table_, values, "values", false);
  const SomeRows some = some_of(rows, first, from);
  const Number number = number_of(dtype);
  checked_threads(num_threads);
  WithoutGil nogil;
  table_.add(some, from.data, number, num_threads);
}

void register_row_table(py::module_& m) {
  py::class_<PyRowTable>(m, "RowTable")
      .def(py::init<py::array>(), py::arg("table"))
      .def("read", &PyRowTable::read, "out[i] = table[rows[i]], or table[first + i] without rows.", py::arg("rows"),
           py::arg("first"), py::arg("out"), py::arg("num_threads") = 1)
      .def("write", &PyRowTable::write, "table[rows[i]] = values[i]; of equal rows the last stays.", py::arg("rows"),
           py::arg("first"), py::arg("values"), py::arg("num_threads") = 1)
      .def("add", &PyRowTable::add, "table[rows[i]] += values[i], of numbers of this dtype.", py::arg("rows"),
           py::arg("first"), py::arg("values"), py::arg("dtype"), py::arg("num_threads") = 1);

  m.def(
      "random_rows",
      [](py::array out, const std::optional<py::array>& ids, int64_t first, bool normal, double a, double b,
         uint64_t key, int num_threads) {
        require(out.ndim() == 2, "out: expected two dimensions");
        require_contiguous(out, "out");
        if (ids) require_size(*ids, "ids", out.shape(0));
        const SomeRows some{ids ? read<int64_t>(*ids, "ids") : nullptr, first, out.shape(0)};
        const RandomValues values{normal, a, b, key};
        checked_threads(num_threads);
        const int64_t width = out.shape(1);
        if (py::isinstance<py::array_t<float>>(out)) {
          float* to = static_cast<float*>(out.mutable_data());
          WithoutGil nogil;
          fill_random(some, values, width, to, num_threads);
        } else {
          require(py::isinstance<py::array_t<double>>(out), "out: expected float32 or float64");
          double* to = static_cast<double*>(out.mutable_data());
          WithoutGil nogil;
          fill_random(some, values, width, to, num_threads);
        }
      },
      "Fills out [n, width] with what rows of these numbers have, uniform in [a, b) or normal of mean a and deviation "
      "b.",
      py::arg("out"), py::arg("ids"), py::arg("first"), py::arg("normal"), py::arg("a"), py::arg("b"), py::arg("key"),
      py::arg("num_threads") = 1);
}

}  // namespace glt::python
