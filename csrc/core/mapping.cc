#include "core/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "core/check.h"

namespace glt {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

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

}  // namespace glt
