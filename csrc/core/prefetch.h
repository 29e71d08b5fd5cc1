// Asking memory for what will be read soon.
#pragma once

namespace glt {

// Asks for the line at `p`; any address will do. Into the second cache, not the first: that waits for few lines at a
// time, and the reads at hand need those. Look-ups all over 8 MB took 6 ns each by the second, 9.5 by the first, on
// a Zen 4.
[[gnu::always_inline]] inline void prefetch(const void* p) {
  __builtin_prefetch(p, 0, 2);
  // To GCC (12) a function that only asks ahead has no effect, and it leaves out calls of it that it has not inlined by
  // then, a lambda's for one. This is no instruction, but it is never left out.
  asm volatile("");
}

}  // namespace glt
