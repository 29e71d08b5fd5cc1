#include <pybind11/pybind11.h>

#if GLT_HAS_CUDA
#include <cuda_runtime_api.h>
#else
#define CUDART_VERSION 0
#endif

namespace glt::python {
void register_rng(pybind11::module_& m);
void register_csr(pybind11::module_& m);
void register_fennel(pybind11::module_& m);
void register_batch(pybind11::module_& m);
void register_one_hop(pybind11::module_& m);
void register_device_batch(pybind11::module_& m);
void register_walk(pybind11::module_& m);
void register_node_sets(pybind11::module_& m);
void register_negatives(pybind11::module_& m);
void register_hotness(pybind11::module_& m);
void register_disk_rows(pybind11::module_& m);
void register_gather(pybind11::module_& m);
void register_slot_cache(pybind11::module_& m);
void register_keys(pybind11::module_& m);
void register_row_table(pybind11::module_& m);
void register_partition_files(pybind11::module_& m);
void register_shm_ring(pybind11::module_& m);
}  // namespace glt::python

PYBIND11_MODULE(_core, m) {
  m.doc() = "The native core of glt: NumPy arrays in, NumPy arrays out; knows no torch.";
  m.attr("has_cuda") = static_cast<bool>(GLT_HAS_CUDA);
  m.attr("cuda_version") = CUDART_VERSION;
  // Classes before the functions and classes that take them.
  glt::python::register_rng(m);
  glt::python::register_csr(m);
  glt::python::register_fennel(m);
  glt::python::register_batch(m);
  glt::python::register_one_hop(m);
  glt::python::register_device_batch(m);
  glt::python::register_walk(m);
  glt::python::register_node_sets(m);
  glt::python::register_negatives(m);
  glt::python::register_hotness(m);
  glt::python::register_disk_rows(m);
  glt::python::register_gather(m);
  glt::python::register_slot_cache(m);
  glt::python::register_keys(m);
  glt::python::register_row_table(m);
  glt::python::register_partition_files(m);
  glt::python::register_shm_ring(m);
}
