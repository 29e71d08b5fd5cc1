// CRC-32 as zlib computes it (polynomial 0x04C11DB7, reflected), at the speed of memory, and of parts put together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace glt {

// The checksum of what `crc` is the checksum of (0: nothing), followed by data[0, n).
uint32_t crc32(const void* data, size_t n, uint32_t crc = 0);

// The checksum of two ranges, one after the other, from those of each; the second has num_bytes.
uint32_t crc32_of_both(uint32_t first, uint32_t second, int64_t num_bytes);

}  // namespace glt
