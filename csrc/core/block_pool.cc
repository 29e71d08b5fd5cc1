#include "core/block_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "core/check.h"
#include "core/huge_pages.h"

namespace glt {
Mapping Mapping::anonymous(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t room = huge ? bytes + kHugePage : bytes;
  if (room < bytes) throw std::bad_alloc();
  void* start = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  if (!huge) return Mapping(start, bytes);
  // Keep the aligned part, give back what sticks out on both sides.
  auto* first = static_cast<uint8_t*>(start);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(first) % kHugePage) % kHugePage;
  if (before > 0) munmap(first, before);
  if (before < kHugePage) munmap(first + before + bytes, kHugePage - before);
  madvise(first + before, bytes, MADV_HUGEPAGE);  // a wish: kernels without huge pages refuse it, and nothing is lost
  return Mapping(first + before, bytes);
}

Mapping Mapping::shared(int fd, size_t bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0) throw std::runtime_error(text("shared memory: fstat failed: ", std::strerror(errno)));
  require(bytes > 0 && static_cast<uint64_t>(info.st_size) >= bytes, "shared memory: the file has ", info.st_size,
          " bytes, expected at least ", bytes);
  void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (start == MAP_FAILED)
    throw std::runtime_error(text("shared memory: mapping ", bytes, " bytes failed: ", std::strerror(errno)));
  return Mapping(start, bytes);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kProcessLimit = size_t{1} << 30;

// Eight sizes per power of two, so that batches of similar size reuse each other's memory; at most 1/8 is wasted.
size_t size_class(size_t nbytes) {
  if (nbytes > SIZE_MAX / 4) throw std::bad_alloc();
  const size_t step = std::max(kPage, std::bit_floor(std::max(nbytes, kPage)) / 8);
  return std::max(step, (nbytes + step - 1) / step * step);
}

// Made when the library is loaded and never destroyed: threads may let go of memory after static destruction.
const std::shared_ptr<BlockPool>& process_pool = *new std::shared_ptr<BlockPool>(BlockPool::create(kProcessLimit));

}  // namespace

// A fork waits until no thread is in the middle of a change, so the child finds a pool that is whole and open. What is
// free in it belongs to the parent, who would have to copy each page that it writes while the child keeps it.
const int BlockPool::fork_handlers =
    pthread_atfork([] { process_pool->mutex_.lock(); }, [] { process_pool->mutex_.unlock(); },
                   [] {
                     process_pool->by_size_.clear();
                     process_pool->free_.clear();
                     process_pool->stats_.free_bytes = 0;
                     process_pool->mutex_.unlock();
                   });

const std::shared_ptr<BlockPool>& BlockPool::of_process() {
  require(fork_handlers == 0, "pthread_atfork: error ", fork_handlers, " when glt was loaded; out of memory?");
  return process_pool;
}

std::shared_ptr<BlockPool> BlockPool::create(size_t limit_bytes) {
  return std::shared_ptr<BlockPool>(new BlockPool(limit_bytes));
}

BlockPool::Block BlockPool::acquire(size_t nbytes) {
  const size_t wanted = size_class(nbytes);
  {
    std::lock_guard lock(mutex_);
    ++stats_.acquired;
    auto best = by_size_.lower_bound(wanted);
    if (best != by_size_.end() && best->first <= std::max(wanted, nbytes + nbytes / 4)) {
      best = std::prev(by_size_.upper_bound(best->first));  // used last: some of it may still be in a cache
      ++stats_.reused;
      stats_.free_bytes -= best->first;
      stats_.used_bytes += best->first;
      Mapping mapping = std::move(*best->second);
      free_.erase(best->second);
      by_size_.erase(best);
      return Block(weak_from_this(), std::move(mapping), nbytes);
    }
    stats_.used_bytes += wanted;
  }
  try {
    return Block(weak_from_this(), fresh_mapping(wanted), nbytes);
  } catch (const std::bad_alloc&) {
    std::lock_guard lock(mutex_);
    stats_.used_bytes -= wanted;
    throw;
  }
}

Mapping BlockPool::fresh_mapping(size_t bytes) {
  try {
    return Mapping::anonymous(bytes);
  } catch (const std::bad_alloc&) {
    drop_free();  // none of it is large enough, or it would have been taken
    return Mapping::anonymous(bytes);
  }
}

void BlockPool::drop_free() {
  Free dropped;  // unmapped after the lock is gone, as in give_back
  const std::lock_guard lock(mutex_);
  by_size_.clear();
  dropped.swap(free_);
  stats_.free_bytes = 0;
}

void BlockPool::give_back(Mapping mapping) {
  Free evicted;  // unmapped after the lock is gone: munmap of a large block takes a while
  std::lock_guard lock(mutex_);
  const size_t bytes = mapping.bytes();
  stats_.used_bytes -= bytes;
  const bool keep = bytes <= stats_.limit_bytes;
  if (!keep) evicted.push_back(std::move(mapping));
  while (keep && stats_.free_bytes + bytes > stats_.limit_bytes) {
    const auto oldest = free_.begin();
    auto [entry, end] = by_size_.equal_range(oldest->bytes());
    while (entry != end && entry->second != oldest) ++entry;
    stats_.free_bytes -= oldest->bytes();
    by_size_.erase(entry);
    evicted.splice(evicted.end(), free_, oldest);
  }
  if (!keep) return;
  free_.push_back(std::move(mapping));
  by_size_.emplace(bytes, std::prev(free_.end()));
  stats_.free_bytes += bytes;
}

BlockPool::Stats BlockPool::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

BlockPool::Block::~Block() {
  if (mapping_.data() == nullptr) return;  // moved from
  if (const auto pool = pool_.lock()) pool->give_back(std::move(mapping_));
}

}  // namespace glt
