// Native memory as a NumPy array: copied, or the array owns the object that owns the memory.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "python/arrays.h"

namespace glt::python {

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
