// Native work beside which other Python threads run.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <exception>

namespace glt::python {

// Calls what may ask for the GIL. Before 3.14, Python ends a daemon thread that does so while the interpreter ends, by
// unwinding its stack, which destructors do not let through and helper threads' work must not vanish under: the process
// was aborted. The thread sleeps instead, as from Python 3.14 on, until the process is gone; what it holds stays as it
// is. Errors pass through. Not to be used while a C++ exception is being caught: libstdc++ ends the process then.
template <typename Call>
void ask_for_gil(const Call& call) {
  try {
    call();
  } catch (const std::exception&) {  // also py::error_already_set
    throw;
  } catch (...) {  // the unwinding, which must not leave this block
    for (;;) pause();
  }
}

// As py::gil_scoped_release, but for daemon threads whose interpreter ends meanwhile, which sleep. Not to be destroyed
// inside a catch block, see above.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    ask_for_gil([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace glt::python
