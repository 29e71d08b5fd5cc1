#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <variant>
#include <vector>

#include "core/memory.h"
#include "core/rng.h"
#include "core/threads.h"
#include "cuda/block.h"
#include "cuda/launcher.h"

namespace glt::cuda {
namespace {

// A block of threads as the host runs it: for tests, and where there is no GPU.
class HostBlock {
 public:
  HostBlock(int x, int y, const std::array<int, kThreads>& order) : x_(x), y_(y), order_(order) {}

  int x() const { return x_; }
  int y() const { return y_; }

  template <typename Step>
  void each(const Step& step) const {
    for (const int thread : order_) step(thread);
  }

  // Blocks may run on several threads, so words that blocks share are changed by atomic operations here too.
  static void atomic_max(uint32_t* word, uint32_t value) {
    change(word, value, [](auto a, auto b) { return a < b; });
  }
  static void atomic_max(uint64_t* word, uint64_t value) {
    change(word, value, [](auto a, auto b) { return a < b; });
  }
  static void atomic_min(uint64_t* word, uint64_t value) {
    change(word, value, [](auto a, auto b) { return a > b; });
  }
  // These return what was there.
  static uint32_t atomic_add(uint32_t* word, uint32_t value) {
    return std::atomic_ref(*word).fetch_add(value, std::memory_order_relaxed);
  }
  static uint64_t atomic_add(uint64_t* word, uint64_t value) {
    return std::atomic_ref(*word).fetch_add(value, std::memory_order_relaxed);
  }
  static uint32_t compare_and_swap(uint32_t* word, uint32_t expected, uint32_t value) {
    std::atomic_ref(*word).compare_exchange_strong(expected, value, std::memory_order_relaxed);
    return expected;
  }
  template <typename Word>
  static Word load(const Word* word) {
    return std::atomic_ref(*const_cast<Word*>(word)).load(std::memory_order_relaxed);
  }

 private:
  template <typename T, typename Loses>
  static void change(T* word, T value, const Loses& loses) {
    std::atomic_ref shared(*word);
    T seen = shared.load(std::memory_order_relaxed);
    while (loses(seen, value) && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }

  int x_, y_;
  const std::array<int, kThreads>& order_;
};

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
