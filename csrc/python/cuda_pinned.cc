#include "cuda/pinned.h"
#include "python/arrays.h"
#include "python/without_gil.h"

namespace glt::python {

void register_cuda_pinned(py::module_& m) {
  m.def("cuda_register_host", &cuda::register_host, "Pins whole pages; see cuda/pinned.h.", py::arg("address"),
        py::arg("num_bytes"), py::arg("read_only"), py::arg("device"), py::call_guard<WithoutGil>());
  m.def("cuda_unregister_host", &cuda::unregister_host, "Undoes cuda_register_host.", py::arg("address"),
        py::arg("device"), py::call_guard<WithoutGil>());
  m.def("cuda_enable_peer", &cuda::enable_peer, "Lets a device read memory of another.", py::arg("device"),
        py::arg("peer"), py::call_guard<WithoutGil>());
}

}  // namespace glt::python
