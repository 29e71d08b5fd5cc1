#include "emulator.h"

#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>

namespace ptx {
namespace {

constexpr size_t kResident = 3;  // blocks that take turns

std::map<std::string, Program>& programs() {
  static std::map<std::string, Program> all;
  return all;
}

struct KernelsRun {
  struct Sum {
    uint64_t load_bytes = 0, load_sectors = 0, store_bytes = 0, store_sectors = 0;
  };
  const char* const traffic_path = std::getenv("PTX_TRAFFIC");
  std::mutex mutex;
  std::map<std::string, Sum> sums;

  void add(const std::string& name, const Traffic& loads, const Traffic& stores) {
    const std::lock_guard lock(mutex);
    Sum& sum = sums[name];
    sum.load_bytes += loads.num_bytes(), sum.load_sectors += loads.num_sectors();
    sum.store_bytes += stores.num_bytes(), sum.store_sectors += stores.num_sectors();
  }
  ~KernelsRun() {
    if (const char* path = std::getenv("PTX_KERNELS_RUN")) {
      std::ofstream file(path, std::ios::app);
      for (const auto& [name, sum] : sums) file << name << "\n";
    }
    if (!traffic_path) return;
    std::ofstream file(traffic_path);
    for (const auto& [name, sum] : sums)
      file << name << " " << sum.load_bytes << " " << sum.load_sectors << " " << sum.store_bytes << " "
           << sum.store_sectors << "\n";
  }
};
KernelsRun kernels_run;

thread_local Order order = Order::kForward;
thread_local std::mt19937_64 random_bits;

// Memory for a block and its threads, used again by the next one.
struct Seat {
  std::vector<std::byte> registers, shared;
  Shadow words;
};
thread_local std::array<Seat, kResident> seats;
thread_local Shadow global_words;

// A block whose threads have begun and not ended.
struct Resident {
  Seat& seat;
  Block block;
  std::vector<Thread*> threads;

  Resident(const Launch& launch, uint32_t index, Seat& at, Traffic* loads, Traffic* stores)
      : seat(at),
        block{*launch.program,
              launch.params.data(),
              index % launch.blocks_x,
              index / launch.blocks_x,
              launch.blocks_x,
              launch.threads,
              nullptr,
              at.words,
              global_words,
              0,
              loads,
              stores} {
    const Program& program = *launch.program;
    seat.words.clear();
    seat.shared.assign(program.shared_bytes, std::byte{0xA5});
    block.shared = seat.shared.data();
    const size_t stride = (program.thread_bytes + 15) / 16 * 16;
    if (seat.registers.size() < stride * launch.threads) seat.registers.resize(stride * launch.threads);
    for (uint32_t t = 0; t < launch.threads; ++t) {
      threads.push_back(reinterpret_cast<Thread*>(seat.registers.data() + t * stride));
      threads.back()->stop = 0;
      threads.back()->waits = false;
      threads.back()->id = t;
    }
  }

  // Every thread to its next stop, and to the next barrier; returns whether they have ended. What is shared with other
  // blocks may be touched in between, by these.
  bool advance() {
    std::vector<uint32_t> turns;
    for (uint32_t t = 0; t < threads.size(); ++t)
      if (!threads[t]->waits) turns.push_back(t);
    if (order == Order::kBackward) std::reverse(turns.begin(), turns.end());
    if (order == Order::kShuffled) std::shuffle(turns.begin(), turns.end(), random_bits);
    bool all_wait = true;
    for (const uint32_t t : turns) {
      block.program.run(block, *threads[t]);
      all_wait &= threads[t]->waits;
    }
    if (!all_wait) return false;
    for (const Thread* thread : threads)
      if (thread->stop != threads[0]->stop) fault(block, *thread, 0, "threads of a block wait at different barriers");
    if (threads[0]->stop == kEnded) return true;
    ++block.epoch;
    for (Thread* thread : threads) thread->waits = false;
    return false;
  }
};

}  // namespace

Registered::Registered(Program program) {
  programs().emplace(program.name, program);
}

const Program& program_of(const std::string& name) {
  const auto found = programs().find(name);
  if (found == programs().end()) throw std::runtime_error("no kernel " + name + " was translated");
  return found->second;
}

Launch launch_of(const Program& program, uint32_t blocks_x, uint32_t blocks_y, uint32_t threads, void** args) {
  Launch launch{&program, blocks_x, blocks_y, threads, std::vector<std::byte>(program.param_bytes)};
  for (size_t p = 0; p < program.param_sizes.size(); ++p)
    std::memcpy(launch.params.data() + program.param_begins[p], args[p], program.param_sizes[p]);
  return launch;
}

void set_order(Order wanted, uint64_t seed) {
  order = wanted;
  random_bits.seed(seed);
}

void run(const Launch& launch) {
  Traffic loads, stores;
  const bool counts = kernels_run.traffic_path;
  std::vector<uint32_t> blocks(launch.blocks_x * launch.blocks_y);
  std::iota(blocks.begin(), blocks.end(), 0u);
  if (order == Order::kBackward) std::reverse(blocks.begin(), blocks.end());
  if (order == Order::kShuffled) std::shuffle(blocks.begin(), blocks.end(), random_bits);
  global_words.clear();
  std::vector<Seat*> free;
  for (Seat& seat : seats) free.push_back(&seat);
  std::deque<std::unique_ptr<Resident>> resident;
  for (size_t next = 0; next < blocks.size() || !resident.empty();) {
    for (; next < blocks.size() && !free.empty(); free.pop_back())
      resident.push_back(std::make_unique<Resident>(launch, blocks[next++], *free.back(), counts ? &loads : nullptr,
                                                    counts ? &stores : nullptr));
    if (order == Order::kShuffled) std::swap(resident.front(), resident[random_bits() % resident.size()]);
    std::unique_ptr<Resident> turn = std::move(resident.front());
    resident.pop_front();
    if (turn->advance())
      free.push_back(&turn->seat);
    else
      resident.push_back(std::move(turn));
  }
  kernels_run.add(launch.program->name, loads, stores);
}

void fault(const Block& block, const Thread& thread, int line, const std::string& what) {
  throw std::runtime_error(std::string(block.program.name) + ", line " + std::to_string(line) + " of its PTX, block (" +
                           std::to_string(block.x) + ", " + std::to_string(block.y) + "), thread " +
                           std::to_string(thread.id) + ": " + what);
}

}  // namespace ptx

const char* ptx_run(const char* name, uint32_t blocks, uint32_t threads, bool backward, void** args) {
  static std::string wrong;
  try {
    ptx::set_order(backward ? ptx::Order::kBackward : ptx::Order::kForward, 0);
    ptx::run(ptx::launch_of(ptx::program_of(name), blocks, 1, threads, args));
    return nullptr;
  } catch (const std::exception& error) {
    wrong = error.what();
    return wrong.c_str();
  }
}
