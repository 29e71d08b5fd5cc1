// Runs kernels by name, all blocks one after another or several in turns.
#pragma once

#include <string>
#include <vector>

#include "machine.h"

namespace ptx {

// In which order threads run between two barriers, and which blocks are resident.
enum class Order { kForward, kBackward, kShuffled };

struct Launch {
  const Program* program = nullptr;
  uint32_t blocks_x = 0, blocks_y = 0, threads = 0;
  std::vector<std::byte> params{};  // copied: a launch in a graph outlives the caller's
};

const Program& program_of(const std::string& name);
Launch launch_of(const Program& program, uint32_t blocks_x, uint32_t blocks_y, uint32_t threads, void** args);

// For what this thread launches from now on.
void set_order(Order order, uint64_t seed);

// Throws where a kernel faults or a checker finds something. When the process ends, the names of all kernels that ran
// are added to the file that the variable PTX_KERNELS_RUN names, if it is set, and the one that PTX_TRAFFIC names has
// each kernel's bytes and sectors of loads, and of stores.
void run(const Launch& launch);

}  // namespace ptx

// For ctypes: runs a kernel; returns null or what is wrong, valid until the next call.
extern "C" __attribute__((visibility("default"))) const char* ptx_run(const char* name, uint32_t blocks,
                                                                      uint32_t threads, bool backward, void** args);
