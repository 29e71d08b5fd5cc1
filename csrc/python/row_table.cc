#include "core/row_table.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/row_update.h"
#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {
namespace {

// An array of rows as bytes.
struct Rows {
  std::byte* data;
  int64_t num_rows, row_bytes;
};

Rows rows_of(const py::array& a, const char* name, bool writes) {
  const int64_t bytes = row_bytes_of(a, name);
  require(!writes || a.writeable(), name, ": expected a writeable array");
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

// Rows as Python holds them: the table, and the array that it is of.
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

template <typename T>
T* matrix(py::array& a, const char* name, int64_t num_rows, int64_t dim) {
  if (!py::isinstance<py::array_t<T>>(a))
    throw py::type_error(
        text(name, ": expected an array of ", py::str(py::dtype::of<T>()).cast<std::string>(), ", got ", describe(a)));
  require(a.ndim() == 2 && a.shape(0) == num_rows && a.shape(1) == dim, name, ": expected [", num_rows, ", ", dim,
          "] elements");
  require_aligned(a, name);
  require(a.writeable(), name, ": expected a writeable array");
  return static_cast<T*>(a.mutable_data());
}

Number number_of_weights(const std::string& dtype) {
  if (dtype == "float32") return Number::kFloat32;
  if (dtype == "bfloat16") return Number::kBfloat16;
  require(dtype == "float16", "dtype = ", dtype, ": expected float32, bfloat16 or float16");
  return Number::kFloat16;
}

class PyRowMerge {
 public:
  PyRowMerge(std::vector<std::pair<py::array, py::array>> parts, int64_t num_rows, int64_t dim)
      : parts_(std::move(parts)) {
    require(num_rows >= 0 && num_rows < int64_t{1} << 62, "num_rows = ", num_rows, ": expected at least 0");
    require(dim >= 0, "dim = ", dim, ": expected at least 0");
    std::vector<RowGradients> views;
    for (const auto& [rows, grads] : parts_) {
      if (!py::isinstance<py::array_t<float>>(grads))
        throw py::type_error(text("grads: expected float32, got ", describe(grads)));
      require(grads.ndim() == 2 && grads.shape(0) == rows.size() && grads.shape(1) == dim, "grads: expected [",
              rows.size(), ", ", dim, "] elements");
      require_aligned(grads, "grads");
      views.push_back({read<int64_t>(rows, "rows"), static_cast<const float*>(grads.data()), rows.size()});
    }
    WithoutGil nogil;
    merge_.emplace(views, num_rows, dim);
  }

  const RowMerge& operator*() const { return *merge_; }

 private:
  const std::vector<std::pair<py::array, py::array>> parts_;  // kept, for the merge points into them
  std::optional<RowMerge> merge_;
};

}  // namespace

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
        require_aligned(out, "out");
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

  py::class_<PyRowMerge>(m, "RowMerge", "Gradients of rows as one sum per row; see csrc/core/row_update.h.")
      .def(py::init<std::vector<std::pair<py::array, py::array>>, int64_t, int64_t>(), py::arg("parts"),
           py::arg("num_rows"), py::arg("dim"))
      .def("__len__", [](const PyRowMerge& self) { return (*self).size(); })
      .def(
          "sum",
          [](const PyRowMerge& self, py::array rows, py::array grads, float scale, int num_threads) {
            checked_threads(num_threads);
            require_size(rows, "rows", (*self).size());
            int64_t* out_rows = write<int64_t>(rows, "rows");
            float* out = matrix<float>(grads, "grads", (*self).size(), (*self).dim());
            WithoutGil nogil;
            (*self).sum_all(scale, out_rows, out, num_threads);
          },
          "Writes the distinct rows, ascending, and scale times the sum of the gradients of each.", py::arg("rows"),
          py::arg("grads"), py::arg("scale") = 1.0F, py::arg("num_threads") = 1)
      .def(
          "adagrad",
          [](const PyRowMerge& self, PyRowTable& weights, const std::string& dtype, PyRowTable& sum, float scale,
             float lr, float eps, int num_threads) {
            checked_threads(num_threads);
            const Number number = number_of_weights(dtype);
            WithoutGil nogil;
            update_rows(*self, weights.table(), number, AdagradStep{sum.table(), scale, lr, eps}, num_threads);
          },
          py::arg("weights"), py::arg("dtype"), py::arg("sum"), py::arg("scale"), py::arg("lr"), py::arg("eps"),
          py::arg("num_threads") = 1)
      .def(
          "adam",
          [](const PyRowMerge& self, PyRowTable& weights, const std::string& dtype, PyRowTable& mean,
             PyRowTable& square, float scale, float step_size, float one_less_beta1, float one_less_beta2, float eps,
             int num_threads) {
            checked_threads(num_threads);
            const Number number = number_of_weights(dtype);
            const AdamStep step{mean.table(), square.table(), scale, step_size, one_less_beta1, one_less_beta2, eps};
            WithoutGil nogil;
            update_rows(*self, weights.table(), number, step, num_threads);
          },
          py::arg("weights"), py::arg("dtype"), py::arg("mean"), py::arg("square"), py::arg("scale"),
          py::arg("step_size"), py::arg("one_less_beta1"), py::arg("one_less_beta2"), py::arg("eps"),
          py::arg("num_threads") = 1);
}

}  // namespace glt::python
