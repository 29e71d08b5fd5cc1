#include "core/exclusions.h"

#include "python/arrays.h"
#include "python/without_gil.h"

namespace glt::python {

void register_exclusions(py::module_& m) {
  py::class_<Exclusions, std::shared_ptr<Exclusions>>(m, "Exclusions")
      .def(py::init([](const py::array& center, const py::array& neighbor) {
             require_size(neighbor, "neighbor", center.size());
             const int64_t* from = read<int64_t>(center, "center");
             const int64_t* to = read<int64_t>(neighbor, "neighbor");
             const int64_t n = center.size();
             WithoutGil nogil;
             return std::make_shared<Exclusions>(from, to, n);
           }),
           "Pairs (expanded node, neighbour) that are never sampled, with all parallel edges between them.",
           py::arg("center"), py::arg("neighbor"));
}

}  // namespace glt::python
