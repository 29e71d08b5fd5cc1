// Where the kernels of a batch run: on a GPU, or on the host, one block after another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "cuda/device_rows.h"
#include "cuda/edge_kernels.h"
#include "cuda/hotness_kernels.h"
#include "cuda/induce_kernels.h"
#include "cuda/negative_kernels.h"
#include "cuda/node_kernels.h"
#include "cuda/row_kernels.h"

namespace glt::cuda {

constexpr int kMaxUnrolled = 16;  // the largest K of PickRows

using Kernel =
    std::variant<AddDoubt, FindExcluded, FindNegatives, TakeSeeds, StampSeeds, StampEdges, CountEdges, PlaceRows,
                 DrawEdges, DrawByWeight, DrawByNumber, PickEdges, CountNew, AddNew, CopyEdges, CopyNodes, CountDegrees,
                 PlaceDegrees, CountMembers, SumMembers, WriteMembers, PickRows<0>, PickRows<1>, PickRows<2>,
                 PickRows<3>, PickRows<4>, PickRows<5>, PickRows<6>, PickRows<7>, PickRows<8>, PickRows<9>,
                 PickRows<10>, PickRows<11>, PickRows<12>, PickRows<13>, PickRows<14>, PickRows<15>, PickRows<16>>;

// All calls are asked for in order and may return before the work is done, but for wait(). They are made within a Turn.
class Launcher {
 public:
  // Makes the launcher's device that of the thread: once for all calls of a batch, since it takes several of CUDA's.
  class Turn {
   public:
    explicit Turn(Launcher& launcher) : launcher_(launcher) { launcher_.enter(); }
    ~Turn() { launcher_.leave(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Launcher& launcher_;
  };

  // replays: whether sequence() may keep what it was asked for.
  explicit Launcher(bool replays) : can_replay_(replays) {}
  virtual ~Launcher() = default;

  // Makes the calls of run, to_device and to_host that `launches` makes. Equal plans must make the same calls, down to
  // the last address: what differs from batch to batch is in the memory that they read. A plan that comes twice in a
  // row is recorded (as a CUDA graph), and from then on replayed by one launch whenever it comes, until another plan
  // comes twice in a row.
  void sequence(const std::vector<int64_t>& plan, const std::function<void()>& launches) {
    if (can_replay_ && has_recording_ && plan == recorded_) {
      replay();
      ++num_replays_;
    } else if (can_replay_ && plan == last_) {
      has_recording_ = false;
      has_recording_ = record(launches);
      recorded_ = plan;
      if (has_recording_)
        replay();
      else
        launches();
    } else {
      launches();
    }
    last_ = plan;
  }
  int64_t num_replays() const { return num_replays_; }

  virtual void begin(void* stream) = 0;  // what follows runs on `stream`
  virtual void run(const Kernel& kernel, int64_t blocks_x, int64_t blocks_y) = 0;
  virtual void zero(void* data, int64_t bytes) = 0;
  virtual void to_device(void* device, const void* staging, int64_t bytes) = 0;
  virtual void to_host(void* staging, const void* device, int64_t bytes) = 0;
  virtual void mark() = 0;
  virtual void wait() = 0;  // until all is done that was asked for before the last mark
  // Host memory that copies may go from and to while the host does something else; valid until the next call.
  virtual void* staging(int64_t bytes) = 0;

 private:
  virtual void enter() {}
  virtual void leave() {}
  // Keeps the calls without making them; false: there is no memory for that now. Forgets those kept before.
  virtual bool record(const std::function<void()>& launches) = 0;
  virtual void replay() = 0;

  const bool can_replay_;
  bool has_recording_ = false;
  int64_t num_replays_ = 0;
  std::vector<int64_t> recorded_, last_;
};

// In which order the host runs the threads of a block and the blocks of a kernel.
enum class Order { kForward, kBackward, kShuffled };

// With several threads, blocks run at the same time, as many.
std::unique_ptr<Launcher> host_launcher(Order order, uint64_t shuffle_seed, int num_threads, bool replays);

// On GPU number `device`, whichever is current for the caller. Throws std::runtime_error naming the CUDA error. Only in
// builds with CUDA.
std::unique_ptr<Launcher> cuda_launcher(int device, bool replays);

}  // namespace glt::cuda
