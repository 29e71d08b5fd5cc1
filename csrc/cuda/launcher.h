// Where the kernels of a batch run: on a GPU, or on the host, one block after another.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "cuda/edge_kernels.h"
#include "cuda/hop_kernels.h"
#include "cuda/induce_kernels.h"
#include "cuda/node_kernels.h"

namespace glt::cuda {

constexpr int kMostFew = 16;  // PickFew keeps up to so many picks in registers

using Kernel =
    std::variant<TakeSeeds, StampSeeds, StampEdges, CountEdges, PlaceRows, DrawEdges, DrawByWeight, PickEdges, CountNew,
                 AddNew, CopyEdges, CopyNodes, CountDegrees, PlaceDegrees, CountMembers, SumMembers, WriteMembers,
                 PickFew<1>, PickFew<2>, PickFew<3>, PickFew<4>, PickFew<5>, PickFew<6>, PickFew<7>, PickFew<8>,
                 PickFew<9>, PickFew<10>, PickFew<11>, PickFew<12>, PickFew<13>, PickFew<14>, PickFew<15>, PickFew<16>>;

// All calls are asked for in order and may return before the work is done, but for wait().
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual void begin(void* stream) = 0;  // what follows runs on `stream`
  virtual void run(const Kernel& kernel, int64_t blocks_x, int64_t blocks_y) = 0;
  virtual void zero(void* data, int64_t bytes) = 0;
  virtual void to_device(void* device, const void* staging, int64_t bytes) = 0;
  virtual void to_host(void* staging, const void* device, int64_t bytes) = 0;
  virtual void mark() = 0;
  virtual void wait() = 0;  // until all is done that was asked for before the last mark
  // Host memory that copies may go from and to while the host does something else; valid until the next call.
  virtual void* staging(int64_t bytes) = 0;
};

// In which order the host runs the threads of a block and the blocks of a kernel.
enum class Order { kForward, kBackward, kShuffled };

// With several threads, blocks run at the same time, as many.
std::unique_ptr<Launcher> host_launcher(Order order, uint64_t shuffle_seed, int num_threads);

}  // namespace glt::cuda
