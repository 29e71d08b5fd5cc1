#include "core/row_update.h"

#include "python/arrays.h"
#include "python/row_table.h"
#include "python/without_gil.h"

namespace glt::python {
namespace {

template <typename T>
T* matrix(py::array& a, const char* name, int64_t num_rows, int64_t dim) {
  if (!py::isinstance<py::array_t<T>>(a))
    throw py::type_error(
        text(name, ": expected an array of ", py::str(py::dtype::of<T>()).cast<std::string>(), ", got ", describe(a)));
  require(a.ndim() == 2 && a.shape(0) == num_rows && a.shape(1) == dim, name, ": expected [", num_rows, ", ", dim,
          "] elements");
  require_contiguous(a, name);
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
      require_contiguous(grads, "grads");
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

void register_row_update(py::module_& m) {
  py::class_<PyRowMerge>(m, "RowMerge", "Gradients of rows as one sum per row; see csrc/core/row_merge.h.")
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
