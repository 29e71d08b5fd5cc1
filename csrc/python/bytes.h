// Native memory as a NumPy array of bytes: the array owns the object that owns the memory.
#pragma once

#include <memory>
#include <utility>

#include "python/arrays.h"

namespace glt::python {

// A writeable uint8 array [nbytes] over `data`. `owner` lives until the last array, tensor or view of it is gone; its
// destructor must not need the GIL.
template <typename Owner>
py::array_t<uint8_t> owned_bytes(uint8_t* data, size_t nbytes, Owner owner) {
  auto held = std::make_unique<Owner>(std::move(owner));
  py::capsule base(held.get(), [](void* p) { delete static_cast<Owner*>(p); });
  held.release();
  return py::array_t<uint8_t>(static_cast<py::ssize_t>(nbytes), data, base);
}

}  // namespace glt::python
