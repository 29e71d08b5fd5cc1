#include <pybind11/pybind11.h>

namespace glt::python {
void register_rng(pybind11::module_& m);
void register_book(pybind11::module_& m);
void register_csr(pybind11::module_& m);
void register_fennel(pybind11::module_& m);
void register_exclusions(pybind11::module_& m);
void register_batch(pybind11::module_& m);
void register_device_batch(pybind11::module_& m);
void register_device_hotness(pybind11::module_& m);
void register_device_negatives(pybind11::module_& m);
void register_one_hop(pybind11::module_& m);
void register_induced_rows(pybind11::module_& m);
void register_gather(pybind11::module_& m);
void register_tiered_table(pybind11::module_& m);
void register_row_index(pybind11::module_& m);
void register_row_update(pybind11::module_& m);
void register_row_table(pybind11::module_& m);
void register_hotness(pybind11::module_& m);
void register_block_pool(pybind11::module_& m);
void register_partition_files(pybind11::module_& m);
void register_shm_ring(pybind11::module_& m);
}  // namespace glt::python

#if GLT_HAS_CUDA
namespace glt::python {
void register_cuda_rng(pybind11::module_& m);
void register_cuda_gather(pybind11::module_& m);
void register_cuda_pinned(pybind11::module_& m);
}  // namespace glt::python
#endif

PYBIND11_MODULE(_core, m) {
  m.doc() = "The native core of glt: NumPy arrays in, NumPy arrays out; knows no torch.";
  m.attr("has_cuda") = static_cast<bool>(GLT_HAS_CUDA);
  glt::python::register_rng(m);
  glt::python::register_book(m);  // before what takes books
  glt::python::register_csr(m);
  glt::python::register_fennel(m);
  glt::python::register_exclusions(m);
  glt::python::register_batch(m);
  glt::python::register_device_batch(m);
  glt::python::register_device_hotness(m);
  glt::python::register_device_negatives(m);
  glt::python::register_one_hop(m);
  glt::python::register_induced_rows(m);
  glt::python::register_gather(m);
  glt::python::register_tiered_table(m);
  glt::python::register_row_index(m);
  glt::python::register_row_update(m);
  glt::python::register_row_table(m);
  glt::python::register_hotness(m);
  glt::python::register_block_pool(m);
  glt::python::register_partition_files(m);
  glt::python::register_shm_ring(m);
#if GLT_HAS_CUDA
  glt::python::register_cuda_rng(m);
  glt::python::register_cuda_gather(m);
  glt::python::register_cuda_pinned(m);
#endif
}
