#include "python/device.h"

#if GLT_HAS_CUDA
#include "cuda/cuda_launcher.h"
#endif

namespace glt::python {

std::unique_ptr<cuda::Launcher> launcher_of(int device, const std::string& order, uint64_t shuffle_seed,
                                            int num_threads, bool replays) {
  if (device >= 0) {
#if GLT_HAS_CUDA
    return cuda::cuda_launcher(device, replays);
#else
    throw std::invalid_argument(text("device = ", device,
                                     ": glt was built without CUDA; install a CUDA toolkit, set CUDA_HOME and build it "
                                     "again with GLT_CUDA=1"));
#endif
  }
  require(order == "forward" || order == "backward" || order == "shuffled", "order = '", order,
          "': expected 'forward', 'backward' or 'shuffled'");
  const cuda::Order by = order == "forward"    ? cuda::Order::kForward
                         : order == "backward" ? cuda::Order::kBackward
                                               : cuda::Order::kShuffled;
  return cuda::host_launcher(by, shuffle_seed, checked_threads(num_threads), replays);
}

}  // namespace glt::python
