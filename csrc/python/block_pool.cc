#include "core/block_pool.h"

#include <memory>

#include "python/owned_array.h"

namespace glt::python {

void register_block_pool(py::module_& m) {
  py::class_<BlockPool, std::shared_ptr<BlockPool>>(m, "BlockPool")
      .def(py::init([](int64_t limit_bytes) {
             require(limit_bytes >= 0, "limit_bytes = ", limit_bytes, ": expected 0 or more");
             return BlockPool::create(static_cast<size_t>(limit_bytes));
           }),
           py::arg("limit_bytes"))
      .def_static("of_process", &BlockPool::of_process, "The one of this process.")
      .def(
          "acquire",
          [](BlockPool& pool, int64_t nbytes) {
            require(nbytes >= 0, "nbytes = ", nbytes, ": expected 0 or more");
            BlockPool::Block block = pool.acquire(static_cast<size_t>(nbytes));
            uint8_t* data = block.data();
            return owned_bytes(data, static_cast<size_t>(nbytes), std::move(block));
          },
          "A page-aligned uint8 array [nbytes] of undefined content. Its memory returns to the pool when the last "
          "array, tensor or view of it is gone.",
          py::arg("nbytes"))
      .def("stats", [](const BlockPool& pool) {
        const BlockPool::Stats s = pool.stats();
        py::dict d;
        d["acquired"] = s.acquired;
        d["reused"] = s.reused;
        d["free_bytes"] = s.free_bytes;
        d["used_bytes"] = s.used_bytes;
        d["limit_bytes"] = s.limit_bytes;
        return d;
      });
}

}  // namespace glt::python
