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
  std::exception_ptr error;
  alignas(64) std::atomic<int64_t> ready{
      0};  // chunk number + 1 once its rows may be read; waited for: a line of its own
};

// What one thread reads with.
struct ReadScratch {
  RowScratch rows;
  PartScratch parts;
};

// The memory of one caller, kept between calls.
struct Chunks {
  std::vector<std::unique_ptr<ChunkSlot>> slots;
  std::vector<std::unique_ptr<ReadScratch>> scratch;  // by thread, the calling one first
};

// Cuts n rows into chunks of chunk_rows, has each read by read(first, count, ReadScratch&, RowSamples& out) on one of
// up to num_threads threads, and hands the chunks in order to consume(const RowSamples&, first, count), always on the
// calling thread. While that thread consumes, the others read ahead: reading waits for memory and consuming
// (relabelling) is shorter, so the threads keep each other busy, and the result cannot depend on how many there are.
template <typename Read, typename Consume>
void read_in_order(int64_t n, int64_t chunk_rows, int num_threads, Chunks& chunks, const Read& read,
                   const Consume& consume) {
  const int64_t num_chunks = (n + chunk_rows - 1) / chunk_rows;
  const int helpers = num_chunks < 4 ? 0 : num_threads - 1;
  // As many rows ahead, whatever the chunks; and one for each thread to read while another waits.
  const int64_t num_slots =
      helpers > 0 ? std::max(16 * num_threads * kChunkRows / chunk_rows, int64_t{2} * num_threads) : 1;
  auto& slots = chunks.slots;
  while (static_cast<int64_t>(slots.size()) < num_slots) slots.push_back(std::make_unique<ChunkSlot>());
  while (static_cast<int>(chunks.scratch.size()) <= helpers) chunks.scratch.push_back(std::make_unique<ReadScratch>());

  // Chunks [consumed, next) are being read or wait. Each on a line of its own: different threads write them.
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int64_t> consumed{0};
  alignas(64) std::atomic<bool> stop{false};
  std::atomic<size_t> num_readers{0};

  struct Reader {
    ReadScratch& scratch;
    int64_t consumed = 0;  // as far as it knows: looking costs a line that the consumer writes all the time
  };
  const auto read_one = [&](Reader& reader) -> bool {
    int64_t chunk = next.load(std::memory_order_relaxed);
    if (chunk >= num_chunks) return false;
    if (chunk >= reader.consumed + num_slots) reader.consumed = consumed.load(std::memory_order_acquire);
    if (chunk >= reader.consumed + num_slots) return false;
    if (!next.compare_exchange_strong(chunk, chunk + 1, std::memory_order_relaxed)) return true;
    ChunkSlot& slot = *slots[chunk % num_slots];
    const int64_t first = chunk * chunk_rows, count = std::min(chunk_rows, n - first);
    slot.rows.clear();
    slot.error = nullptr;
    try {
      read(first, count, reader.scratch, slot.rows);
    } catch (...) {
      slot.error = std::current_exception();
    }
    slot.ready.store(chunk + 1, std::memory_order_release);
    return true;
  };

  std::exception_ptr error;
  const auto main = [&] {
    Reader reader{*chunks.scratch[0]};
    try {
      for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
        ChunkSlot& slot = *slots[chunk % num_slots];
        Backoff backoff;
        while (slot.ready.load(std::memory_order_acquire) != chunk + 1)
          if (!read_one(reader)) backoff.pause();
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
    Reader reader{*chunks.scratch[1 + num_readers.fetch_add(1)]};  // each of the helpers starts once at most
    Backoff backoff;
    while (!stop.load(std::memory_order_acquire) && next.load(std::memory_order_relaxed) < num_chunks)
      if (!read_one(reader)) backoff.pause();
  };
  for (auto& slot : slots) slot->ready.store(0, std::memory_order_relaxed);
  run_with_helpers(helpers, main, helper);
  if (error) std::rethrow_exception(error);
}

// The samples of `rows`, as sample_rows makes them.
template <typename Consume>
void sample_in_order(const PartedCsr& graph, const Rows& rows, const HopSpec& spec, int num_threads, Chunks& chunks,
                     const char* name, const Consume& consume) {
  check_spec(spec);
  const auto read = [&](int64_t first, int64_t count, ReadScratch& scratch, RowSamples& out) {
    const auto sample = [&](const CsrView& csr, const Rows& some, RowSamples& found, const char* name, int64_t first) {
      sample_rows(csr, some, spec, scratch.rows, found, name, first);
    };
    graph.read_rows(rows.slice(first, count), scratch.parts, out, name, first, sample);
  };
  read_in_order(rows.n, graph.chunk_rows(), num_threads, chunks, read, consume);
}

}  // namespace glt
