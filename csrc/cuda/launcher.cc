#include "cuda/launcher.h"

namespace glt::cuda {

void Launcher::sequence(const std::vector<int64_t>& plan, const std::function<void()>& launches) {
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

}  // namespace glt::cuda
