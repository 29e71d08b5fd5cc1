#include "core/huge_pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>

#include "core/block_pool.h"
#include "core/check.h"

namespace glt {
namespace {

// Headers may be older.
constexpr int kCollapse = 25;      // MADV_COLLAPSE, Linux 6.1
constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, Linux 5.14

// Whether all that is there of a huge page's worth of memory is private to this process, as /proc/self/pagemap says.
bool is_private(int pagemap, uintptr_t address) {
  constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62, kOfFileOrShared = uint64_t{1} << 61,
                     kExclusive = uint64_t{1} << 56;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uint64_t entries[kHugePage / 4096];
  const size_t bytes = kHugePage / page * sizeof(uint64_t);
  if (pread(pagemap, entries, bytes, static_cast<off_t>(address / page * sizeof(uint64_t))) !=
      static_cast<ssize_t>(bytes))
    return false;
  return std::none_of(entries, entries + kHugePage / page, [](uint64_t entry) {
    return (entry & (kSwapped | kOfFileOrShared)) || ((entry & kPresent) && !(entry & kExclusive));
  });
}

// Whether memory that has been read is in huge pages, but for a rest: ioctl PAGEMAP_SCAN, of Linux 6.7. Its argument
// is written out here.
bool is_huge(const uint8_t* address, size_t bytes) {
  struct Region {
    uint64_t start, end, categories;
  } found{};
  struct {
    uint64_t size, flags, start, end, walk_end, regions, num_regions, max_pages, inverted, all_of, any_of, returned;
  } scan{};
  constexpr uint64_t kHuge = uint64_t{1} << 6;  // PAGE_IS_HUGE
  scan.size = sizeof scan;
  scan.start = reinterpret_cast<uintptr_t>(address);
  scan.end = scan.start + bytes / kHugePage * kHugePage;
  scan.regions = reinterpret_cast<uintptr_t>(&found);
  scan.num_regions = 1;
  scan.all_of = scan.returned = kHuge;
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return false;
  const int regions = ioctl(pagemap, _IOWR('f', 16, scan), &scan);
  close(pagemap);
  return regions == 1 && found.start == scan.start && found.end == scan.end;
}

}  // namespace

int64_t collapse_to_huge_pages(void* data, int64_t bytes, double seconds) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (first + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = (first + static_cast<uintptr_t>(bytes)) & ~(kHugePage - 1);
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  int64_t moved = 0;
  for (uintptr_t at = begin; at < end && std::chrono::steady_clock::now() < until; at += kHugePage) {
    if (!is_private(pagemap, at)) break;
    if (madvise(reinterpret_cast<void*>(at), kHugePage, kCollapse) == 0)
      moved += kHugePage;
    else if (errno != EINVAL && errno != EAGAIN && errno != EBUSY)  // those are of this page alone
      break;
  }
  if (pagemap >= 0) close(pagemap);
  return moved;
}

bool read_into_huge_pages(int fd, int64_t begin, int64_t bytes) {
  struct stat file;
  if (begin < 0 || bytes < 0 || fstat(fd, &file) != 0) return false;
  bytes = std::min<int64_t>(bytes, file.st_size - begin);
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 0));
  if (begin % static_cast<int64_t>(kHugePage) != 0 || size < kHugePage) return false;
  try {
    const Mapping room = Mapping::anonymous(size);  // for its place, a multiple of 2 MiB as `begin` is
    if (mmap(room.data(), size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, begin) == MAP_FAILED) return false;
    const auto are_read = [&] { return madvise(room.data(), size, kPopulateRead) == 0 && is_huge(room.data(), size); };
    // Random: else the kernel reads ahead what follows, into small pages.
    if (madvise(room.data(), size, MADV_HUGEPAGE) != 0 || madvise(room.data(), size, MADV_RANDOM) != 0) return false;
    if (are_read()) return true;
    if (madvise(room.data(), size, kCollapse) == 0) return true;
    // They were there already, in small pages. The kernel drops what the disk has and no process uses.
    madvise(room.data(), size, MADV_DONTNEED);
    sync_file_range(fd, begin, bytes, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(fd, begin, bytes, POSIX_FADV_DONTNEED);
    return are_read();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace glt
