#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/buffer.h"
#include "core/shuffle.h"
#include "core/team.h"
#include "cuda/host_block.h"
#include "cuda/launcher.h"

namespace glt::cuda {
namespace {

class HostLauncher : public Launcher {
 public:
  HostLauncher(Order order, uint64_t shuffle_seed, int num_threads, bool replays)
      : Launcher(replays), order_(order), num_threads_(num_threads), shuffle_seed_(shuffle_seed) {}

  void begin(void*) override {}
  void run(const Kernel& kernel, int64_t blocks_x, int64_t blocks_y) override {
    do_or_keep([this, kernel, blocks_x, blocks_y] {
      std::visit([&](const auto& body) { run_body(body, blocks_x, blocks_y); }, kernel);
    });
  }
  void zero(void* data, int64_t bytes) override { std::memset(data, 0, bytes); }
  void to_device(void* device, const void* staging, int64_t bytes) override {
    do_or_keep([=] { std::memcpy(device, staging, bytes); });
  }
  void to_host(void* staging, const void* device, int64_t bytes) override {
    do_or_keep([=] { std::memcpy(staging, device, bytes); });
  }
  void mark() override {}
  void wait() override {}
  void* staging(int64_t bytes) override {
    staging_.resize(bytes);
    return staging_.data();
  }

 private:
  bool record(const std::function<void()>& launches) override {
    kept_.clear();
    is_recording_ = true;
    try {
      launches();
    } catch (...) {
      is_recording_ = false;
      throw;
    }
    is_recording_ = false;
    return true;
  }
  void replay() override {
    for (const auto& call : kept_) call();
  }
  void do_or_keep(std::function<void()> call) {
    if (is_recording_)
      kept_.push_back(std::move(call));
    else
      call();
  }

  template <typename Items>
  void put_in_order(Items& items) {
    std::iota(items.begin(), items.end(), 0);
    if (order_ == Order::kBackward) std::reverse(items.begin(), items.end());
    if (order_ == Order::kShuffled) {
      std::vector<int64_t> shuffled(items.begin(), items.end());
      shuffle(shuffled.data(), static_cast<int64_t>(shuffled.size()), shuffle_seed_++);
      std::copy(shuffled.begin(), shuffled.end(), items.begin());
    }
  }

  template <typename Body>
  void run_body(const Body& body, int64_t blocks_x, int64_t blocks_y) {
    std::array<int, kThreads> threads;
    put_in_order(threads);
    std::vector<int64_t> blocks(blocks_x * blocks_y);
    put_in_order(blocks);
    std::atomic<size_t> next{0};
    const auto serve = [&] {
      typename Body::Shared shared;
      for (size_t at; (at = next.fetch_add(1)) < blocks.size();)
        body(HostBlock(static_cast<int>(blocks[at] % blocks_x), static_cast<int>(blocks[at] / blocks_x), threads),
             shared);
    };
    run_with_helpers(num_threads_ - 1, serve, serve);
  }

  const Order order_;
  const int num_threads_;
  uint64_t shuffle_seed_;
  Buffer<std::byte> staging_;
  bool is_recording_ = false;
  std::vector<std::function<void()>> kept_;
};

}  // namespace

std::unique_ptr<Launcher> host_launcher(Order order, uint64_t shuffle_seed, int num_threads, bool replays) {
  return std::make_unique<HostLauncher>(order, shuffle_seed, num_threads, replays);
}

}  // namespace glt::cuda
