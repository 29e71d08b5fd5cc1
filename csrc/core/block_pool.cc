#include "core/block_pool.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

namespace glt {
namespace {

constexpr size_t kPage = 4096;

// Eight sizes per power of two, so that batches of similar size reuse each other's memory; at most 1/8 is wasted.
size_t size_class(size_t nbytes) {
  if (nbytes > SIZE_MAX / 4) throw std::bad_alloc();
  const size_t step = std::max(kPage, std::bit_floor(std::max(nbytes, kPage)) / 8);
  return std::max(step, (nbytes + step - 1) / step * step);
}

}  // namespace

std::shared_ptr<BlockPool> BlockPool::create(size_t limit_bytes) {
  return std::shared_ptr<BlockPool>(new BlockPool(limit_bytes));
}

BlockPool::Block BlockPool::acquire(size_t nbytes) {
  const size_t wanted = size_class(nbytes);
  {
    std::lock_guard lock(mutex_);
    ++stats_.acquired;
    const auto best = by_size_.lower_bound(wanted);
    if (best != by_size_.end() && best->first <= std::max(wanted, nbytes + nbytes / 4)) {
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
    return Block(weak_from_this(), Mapping::anonymous(wanted), nbytes);
  } catch (const std::bad_alloc&) {
    std::lock_guard lock(mutex_);
    stats_.used_bytes -= wanted;
    throw;
  }
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
