// A Python function that is told how far a long call has come.
#pragma once

#include <optional>

#include "core/work_items.h"
#include "python/arrays.h"

namespace glt::python {

// Also lets Ctrl-C end the call. `function` must outlive the result; calls come from the thread that made it.
inline Tick tick_of(const std::optional<py::function>& function) {
  return [&function](int64_t num_bytes) {
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (function && num_bytes > 0) (*function)(num_bytes);
  };
}

}  // namespace glt::python
