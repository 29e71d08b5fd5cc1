// Native work beside which other Python threads run, the objects that it works on, and Python functions that it calls.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "core/check.h"
#include "core/threads.h"
#include "python/arrays.h"

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

// The GIL for a scope of a thread that gave it up, which had this state. Not py::gil_scoped_acquire: that makes a state
// of its own, which a runtime that has ended cannot.
class WithGil {
 public:
  explicit WithGil(PyThreadState* state) { PyEval_RestoreThread(state); }
  ~WithGil() { PyEval_SaveThread(); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
};

// An object of a class that is for one thread at a time. While one works on it without the GIL, another may come.
template <typename T>
class OneUser : public T {
 public:
  using T::T;

  // That a call works on the object. A second one is refused.
  class Use {
   public:
    Use(OneUser& object, const char* name) : object_(object) {
      if (object_.is_used_.exchange(true, std::memory_order_acquire))
        throw std::runtime_error(text("the ", name,
                                      " is in use by another thread: expected one thread at a time; give "
                                      "each thread a ",
                                      name, " of its own"));
    }
    ~Use() { object_.is_used_.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    OneUser& object_;
  };

 private:
  std::atomic<bool> is_used_{false};
};

// Makes methods of such a class, which Python calls by this name, of functions that take a T, or T's own.
template <typename T>
struct OneUserMethods {
  const char* name;

  template <typename Result, typename Self, typename... Args>
  auto operator()(Result (*call)(Self&, Args...)) const {
    return method<Result, Args...>(call);
  }
  template <typename Result, typename Self, typename... Args>
  auto operator()(Result (Self::*call)(Args...)) const {
    return method<Result, Args...>(call);
  }
  template <typename Result, typename Self, typename... Args>
  auto operator()(Result (Self::*call)(Args...) const) const {
    return method<Result, Args...>(call);
  }

 private:
  template <typename Result, typename... Args, typename Call>
  auto method(Call call) const {
    return [call, name = name](OneUser<T>& self, Args... args) -> Result {
      const typename OneUser<T>::Use use(self, name);
      return std::invoke(call, self, std::forward<Args>(args)...);
    };
  }
};

// A Python function that is told how far a long call has come. Also lets Ctrl-C end the call, without a function too.
// `function` must outlive the result; calls come from the thread that made it, which has given up the GIL meanwhile.
inline Progress progress_of(const std::optional<py::function>& function) {
  return [&function, state = PyThreadState_Get()](int64_t num_bytes) {
    ask_for_gil([&] {
      const WithGil gil(state);
      ask_for_gil([&] {  // Python code does, again and again: what is above must not give back what it has not
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        if (!function || num_bytes == 0) return;
        // By C's call: pybind11's would drop references as it is unwound, without the GIL.
        PyObject* const answer = PyObject_CallFunction(function->ptr(), "L", static_cast<long long>(num_bytes));
        if (answer == nullptr) throw py::error_already_set();
        Py_DECREF(answer);
      });
    });
  };
}

}  // namespace glt::python
