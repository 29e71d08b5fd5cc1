// A Python function that is told how far a long call has come.
#pragma once

#include <optional>

#include "core/work_items.h"
#include "python/arrays.h"
#include "python/without_gil.h"

namespace glt::python {

// The GIL for a scope of a thread that gave it up, which had this state. Not py::gil_scoped_acquire: that makes a state
// of its own, which a runtime that has ended cannot.
class WithGil {
 public:
  explicit WithGil(PyThreadState* state) { PyEval_RestoreThread(state); }
  ~WithGil() { PyEval_SaveThread(); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
};

// Also lets Ctrl-C end the call, without a function too. `function` must outlive the result; calls come from the thread
// that made it, which has given up the GIL meanwhile.
inline Tick tick_of(const std::optional<py::function>& function) {
  return [&function, state = PyThreadState_Get()](int64_t num_bytes) {
    ask_for_gil([&] {
      const WithGil gil(state);
      ask_for_gil([&] {  // Python code does, again and again: what is above must not give back what it has not
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        if (!function || num_bytes == 0) return;
        // By C's call: pybind11's would drop references as it is unwound, without the GIL.
        PyObject* const told = PyObject_CallFunction(function->ptr(), "L", static_cast<long long>(num_bytes));
        if (told == nullptr) throw py::error_already_set();
        Py_DECREF(told);
      });
    });
  };
}

}  // namespace glt::python
