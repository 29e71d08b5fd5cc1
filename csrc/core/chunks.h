// Reading rows ahead on several threads, consuming them in order on one.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "core/parted_csr.h"
#include "core/sample.h"
#include "core/team.h"

namespace glt {

// A chunk being read or waiting to be consumed.
struct ChunkSlot {
  RowSamples rows;
  PartScratch parts;
  std::exception_ptr error;
  std::atomic<int64_t> ready{0};  // chunk number + 1 once its rows may be read
};

// The slots of one caller, kept between calls so that their memory is reused.
using ChunkSlots = std::vector<std::unique_ptr<ChunkSlot>>;

// Cuts n rows into chunks of chunk_rows, has each read into slot.rows by read(first, count, slot) on one of up to
// num_threads threads, and hands the chunks in order to consume(const RowSamples&, first, count), always on the calling
// thread. While that thread consumes, the others read ahead: reading waits for memory and consuming (relabelling) is
// shorter, so the threads keep each other busy, and the result cannot depend on how many there are.
template <typename Read, typename Consume>
void read_in_order(int64_t n, int64_t chunk_rows, int num_threads, ChunkSlots& slots, const Read& read,
                   const Consume& consume) {
  const int64_t num_chunks = (n + chunk_rows - 1) / chunk_rows;
  const int helpers = num_chunks < 4 ? 0 : num_threads - 1;
  // As many rows ahead, whatever the chunks; and one for each thread to read while another waits.
  const int64_t num_slots =
      helpers > 0 ? std::max(16 * num_threads * kChunkRows / chunk_rows, int64_t{2} * num_threads) : 1;
  while (static_cast<int64_t>(slots.size()) < num_slots) slots.push_back(std::make_unique<ChunkSlot>());

  std::atomic<int64_t> next{0}, consumed{0};  // chunks [consumed, next) are being read or wait
  std::atomic<bool> stop{false};

  const auto read_one = [&]() -> bool {
    int64_t chunk = next.load(std::memory_order_relaxed);
    if (chunk >= num_chunks || chunk >= consumed.load(std::memory_order_acquire) + num_slots) return false;
    if (!next.compare_exchange_strong(chunk, chunk + 1, std::memory_order_relaxed)) return true;
    ChunkSlot& slot = *slots[chunk % num_slots];
    const int64_t first = chunk * chunk_rows, count = std::min(chunk_rows, n - first);
    slot.rows.clear();
    slot.error = nullptr;
    try {
      read(first, count, slot);
    } catch (...) {
      slot.error = std::current_exception();
    }
    slot.ready.store(chunk + 1, std::memory_order_release);
    return true;
  };

  std::exception_ptr error;
  const auto main = [&] {
    try {
      for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
        ChunkSlot& slot = *slots[chunk % num_slots];
        Backoff backoff;
        while (slot.ready.load(std::memory_order_acquire) != chunk + 1)
          if (!read_one()) backoff.pause();
        if (slot.error) std::rethrow_exception(slot.error);
        const int64_t first = chunk * chunk_rows;
        consume(slot.rows, first, std::min(chunk_rows, n - first));
        consumed.store(chunk + 1, std::memory_order_release);
      }
    } catch (...) {
      error = std::current_exception();
    }
    stop.store(true, std::memory_order_release);
  };
  const auto helper = [&] {
    Backoff backoff;
    while (!stop.load(std::memory_order_acquire) && next.load(std::memory_order_relaxed) < num_chunks)
      if (!read_one()) backoff.pause();
  };
  for (auto& slot : slots) slot->ready.store(0, std::memory_order_relaxed);
  run_with_helpers(helpers, main, helper);
  if (error) std::rethrow_exception(error);
}

// The samples of `rows`, as sample_rows makes them.
template <typename Consume>
void sample_in_order(const PartedCsr& graph, const Rows& rows, const HopSpec& spec, int num_threads, ChunkSlots& slots,
                     const char* name, const Consume& consume) {
  check_spec(spec);
  const auto sample = [&](const CsrView& csr, const Rows& some, RowSamples& out, const char* name, int64_t first) {
    sample_rows(csr, some, spec, out, name, first);
  };
  const auto read = [&](int64_t first, int64_t count, ChunkSlot& slot) {
    graph.read_rows(rows.slice(first, count), slot.parts, slot.rows, name, first, sample);
  };
  read_in_order(rows.n, graph.chunk_rows(), num_threads, slots, read, consume);
}

}  // namespace glt
