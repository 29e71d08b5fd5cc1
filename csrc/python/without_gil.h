// Native work beside which other Python threads run.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace glt::python {

// As py::gil_scoped_release, but for daemon threads whose interpreter ends meanwhile. Before 3.14, Python ends a thread
// that asks for the GIL then, by unwinding its stack, which no destructor may let through: the process was aborted.
// They sleep instead, as from Python 3.14 on, until the process is gone; what they hold stays as it is.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // the unwinding, which must not leave this block
      for (;;) pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace glt::python
