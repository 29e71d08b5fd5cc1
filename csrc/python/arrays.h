// NumPy arrays as typed pointers, with every check that stands between Python and the core; native memory as NumPy
// arrays.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/csr.h"

namespace glt::python {

namespace py = pybind11;

inline std::string describe(const py::array& a) {
  return py::str(a.dtype()).cast<std::string>() +
         (a.ndim() == 1 ? "" : " of " + std::to_string(a.ndim()) + " dimensions");
}

inline void require_contiguous(const py::array& a, const char* name) {
  require(a.flags() & py::array::c_style, name, ": expected a contiguous array; call .contiguous() first");
}

// Of elements that are used as what they are. Rows that are moved as bytes may begin anywhere.
inline void require_aligned(const py::array& a, const char* name) {
  require_contiguous(a, name);
  require(a.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_, name,
          ": expected an array whose elements are aligned, of ", a.itemsize(), " bytes each; copy it first");
}

// A one-dimensional contiguous array of exactly this type.
template <typename T>
const T* read(const py::array& a, const char* name) {
  if (!py::isinstance<py::array_t<T>>(a) || a.ndim() != 1)
    throw py::type_error(text(name, ": expected a 1-d array of ", py::str(py::dtype::of<T>()).cast<std::string>(),
                              ", got ", describe(a)));
  require_aligned(a, name);
  return static_cast<const T*>(a.data());
}

template <typename T>
T* write(py::array& a, const char* name) {
  read<T>(a, name);
  require(a.writeable(), name, ": expected a writeable array");
  return static_cast<T*>(a.mutable_data());
}

// Ids in either width.
inline Ids read_ids(const py::array& a, const char* name) {
  if (py::isinstance<py::array_t<int32_t>>(a)) return read<int32_t>(a, name);
  if (py::isinstance<py::array_t<int64_t>>(a)) return read<int64_t>(a, name);
  throw py::type_error(text(name, ": expected a 1-d array of int32 or int64, got ", describe(a)));
}

inline MutableIds write_ids(py::array& a, const char* name) {
  if (py::isinstance<py::array_t<int32_t>>(a)) return write<int32_t>(a, name);
  if (py::isinstance<py::array_t<int64_t>>(a)) return write<int64_t>(a, name);
  throw py::type_error(text(name, ": expected a 1-d array of int32 or int64, got ", describe(a)));
}

// Bytes of a row of a table: any dtype, one or more dimensions, contiguous.
inline int64_t row_bytes_of(const py::array& a, const char* name) {
  require(a.ndim() >= 1, name, ": expected at least one dimension");
  require_contiguous(a, name);
  int64_t bytes = a.itemsize();
  for (int64_t d = 1; d < a.ndim(); ++d) bytes *= a.shape(d);
  return bytes;
}

// Memory that NumPy knows nothing of, such as a device's, comes as addresses. The caller keeps what they point to.
template <typename T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// The owner of each id, in any of the widths that partitioners write.
inline OwnerArray owner_array(const py::array& a, int64_t num_parts, const char* name) {
  OwnerArray array{static_cast<const uint8_t*>(nullptr), a.size(), num_parts};
  if (py::isinstance<py::array_t<uint8_t>>(a))
    array.owner = read<uint8_t>(a, name);
  else if (py::isinstance<py::array_t<uint16_t>>(a))
    array.owner = read<uint16_t>(a, name);
  else
    array.owner = read<uint32_t>(a, name);
  return array;
}

inline void require_size(const py::array& a, const char* name, int64_t size) {
  require(a.size() == size, name, " has ", a.size(), " elements: expected ", size);
}

inline int checked_threads(int num_threads) {
  require(num_threads >= 1 && num_threads <= 1024, "num_threads = ", num_threads, ": expected 1 to 1024");
  return num_threads;
}

// Not py::array_t<T>(n, data): there NumPy copies, and from 500 elements on gives up the GIL, which a daemon thread
// must not ask for again, in the middle of native code, when the interpreter ends (see WithoutGil).
template <typename T>
py::array_t<T> copied_array(const T* data, int64_t n) {
  py::array_t<T> a(n);
  std::copy_n(data, n, a.mutable_data());
  return a;
}

// A writeable array of `shape` over `data`. `owner` lives until the last array, tensor or view of it is gone; its
// destructor must not need the GIL.
template <typename T, typename Owner>
py::array_t<T> owned_array(T* data, std::vector<py::ssize_t> shape, Owner owner) {
  auto held = std::make_unique<Owner>(std::move(owner));
  py::capsule base(held.get(), [](void* p) { delete static_cast<Owner*>(p); });
  held.release();
  return py::array_t<T>(std::move(shape), data, base);
}

template <typename Owner>
py::array_t<uint8_t> owned_bytes(uint8_t* data, size_t nbytes, Owner owner) {
  return owned_array(data, {static_cast<py::ssize_t>(nbytes)}, std::move(owner));
}

}  // namespace glt::python
