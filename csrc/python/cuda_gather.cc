#include "cuda/gather.h"
#include "python/arrays.h"
#include "python/without_gil.h"

namespace glt::python {

void register_cuda_gather(py::module_& m) {
  m.def(
      "cuda_gather",
      [](const cuda::TieredTable& table, const cuda::GatherCall& call, int device, uint64_t stream, int max_blocks) {
        WithoutGil nogil;
        cuda::gather_rows(table, call, max_blocks, device, reinterpret_cast<void*>(stream));
      },
      "Launches the gather on a device; see csrc/cuda/gather.h.", py::arg("table"), py::arg("call"), py::arg("device"),
      py::arg("stream"), py::arg("max_blocks") = 0);
}

}  // namespace glt::python
