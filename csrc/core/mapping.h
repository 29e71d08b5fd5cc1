// Memory obtained from the kernel by mmap, given back when the object dies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace glt {

class Mapping {
 public:
  // Zeroed private memory. From 2 MiB on it is aligned to 2 MiB and huge pages are asked for: one page fault in place
  // of 512. Throws std::bad_alloc when the kernel refuses.
  static Mapping anonymous(size_t bytes);
  // The first `bytes` bytes of a file, shared with everyone else who maps it. The mapping needs no open descriptor
  // afterwards. Throws std::invalid_argument where the file is shorter: touching such pages would be a SIGBUS.
  static Mapping shared(int fd, size_t bytes);

  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Mapping(void* data, size_t bytes) : data_(static_cast<uint8_t*>(data)), bytes_(bytes) {}

  uint8_t* data_;
  size_t bytes_;
};

}  // namespace glt
