// What instructions of PTX mean (PTX ISA 9.0, NVIDIA), and what a GPU's checkers look for while they run.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "shadow.h"
#include "traffic.h"

namespace ptx {

constexpr uint32_t kEnded = ~0u;
constexpr uint64_t kSharedBase = 1024;  // so that no shared address is 0

struct Thread {
  uint32_t stop = 0;   // where it goes on; 0: has not begun
  bool waits = false;  // for the other threads of its block, to go on or to end
  uint32_t id = 0;     // tid.x
};

struct Block;

struct Program {
  const char* name;
  void (*run)(Block& block, Thread& thread);  // up to the next stop
  size_t thread_bytes, shared_bytes, param_bytes;
  std::vector<size_t> param_sizes, param_begins;
};

// A kernel whose C++ was linked makes itself known by one of these.
struct Registered {
  explicit Registered(Program program);
};

struct Block {
  const Program& program;
  const std::byte* params;
  uint32_t x, y, num_x, num_threads;
  std::byte* shared;         // [program.shared_bytes]
  Shadow& shared_words;      // of the block
  Shadow& global_words;      // of the launch
  uint32_t epoch = 0;        // barriers that its threads have passed
  Traffic* loads = nullptr;  // of global memory; null: nobody counts
  Traffic* stores = nullptr;

  Access access(const Thread& t) const {
    const uint32_t index = y * num_x + x;
    return {index * num_threads + t.id, index, epoch};
  }
};

[[noreturn]] void fault(const Block& block, const Thread& thread, int line, const std::string& what);

inline uint32_t tid_x(const Block&, const Thread& t) {
  return t.id;
}
inline uint32_t ntid_x(const Block& b, const Thread&) {
  return b.num_threads;
}
inline uint32_t ctaid_x(const Block& b, const Thread&) {
  return b.x;
}
inline uint32_t ctaid_y(const Block& b, const Thread&) {
  return b.y;
}
inline uint32_t nctaid_x(const Block& b, const Thread&) {
  return b.num_x;
}

// Values. Registers have no type: an instruction reads their bits as its own, and takes the low ones of wider
// registers.
template <typename T, typename S>
T as(S value) {
  if constexpr (sizeof(T) == sizeof(S)) return std::bit_cast<T>(value);
  static_assert(sizeof(T) == sizeof(S) || (std::is_integral_v<T> && std::is_integral_v<S> && sizeof(T) < sizeof(S)));
  return static_cast<T>(value);
}
template <typename D, typename V>
void put(D& to, V value) {
  if constexpr (sizeof(D) == sizeof(V)) {
    to = std::bit_cast<D>(value);
  } else {
    static_assert(std::is_integral_v<D> && std::is_integral_v<V> && sizeof(D) > sizeof(V));
    to = static_cast<D>(value);  // zeros or the sign above it, by V
  }
}
inline uint32_t low_half(uint64_t v) {
  return static_cast<uint32_t>(v);
}
inline uint32_t high_half(uint64_t v) {
  return static_cast<uint32_t>(v >> 32);
}
inline uint64_t of_halves(uint32_t low, uint32_t high) {
  return uint64_t{high} << 32 | low;
}

template <typename T>
using Unsigned = std::make_unsigned_t<T>;

// Integers wrap around; floating-point operations are done one by one, as compiled.
#define PTX_WRAPPING(name, op)                                                                                     \
  template <typename T>                                                                                            \
  T name##_(T a, T b) {                                                                                            \
    if constexpr (std::is_integral_v<T>)                                                                           \
      return static_cast<T>(static_cast<Unsigned<T>>(static_cast<Unsigned<T>>(a) op static_cast<Unsigned<T>>(b))); \
    else                                                                                                           \
      return a op b;                                                                                               \
  }
PTX_WRAPPING(add, +)
PTX_WRAPPING(sub, -)
PTX_WRAPPING(mul, *)
#undef PTX_WRAPPING
template <typename T>
T mul_lo_(T a, T b) {
  return mul_(a, b);
}
template <typename T>
T mad_lo_(T a, T b, T c) {
  return add_(mul_(a, b), c);
}
template <typename T>
T mul_hi_(T a, T b) {
  static_assert(sizeof(T) == 8 && std::is_unsigned_v<T>);
  return static_cast<T>(static_cast<unsigned __int128>(a) * b >> 64);
}
template <typename T>
auto mul_wide_(T a, T b) {
  using Narrow = std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>;
  using Wide = std::conditional_t<sizeof(T) == 2, Narrow, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
  return static_cast<Wide>(static_cast<int64_t>(a) * static_cast<int64_t>(b));
}
template <typename T>
T neg_(T a) {
  return std::is_integral_v<T> ? static_cast<T>(sub_(T{0}, a)) : -a;
}
template <typename T>
T abs_(T a) {
  return std::fabs(a);
}
template <typename T>
T min_(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  return a < b ? a : b;
}
template <typename T>
T max_(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  return a < b ? b : a;
}
template <typename T>
T div_(T a, T b) {
  if constexpr (std::is_integral_v<T>) return b == 0 ? static_cast<T>(-1) : static_cast<T>(a / b);
  return a / b;
}
template <typename T>
T fma_(T a, T b, T c) {
  return std::fma(a, b, c);
}
template <typename T>
T rcp_(T a) {
  return T{1} / a;
}
template <typename T>
T rcp_approx_(T a) {  // 20 bits of the fraction, as the ISA says of rcp.approx.ftz.f64
  static_assert(sizeof(T) == 8);
  if (std::fpclassify(a) == FP_SUBNORMAL) a = std::copysign(0.0, a);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(1.0 / a) & ~uint64_t{0xFFFFFFFF});
}
template <typename T>
T and_(T a, T b) {
  return static_cast<T>(a & b);
}
template <typename T>
T or_(T a, T b) {
  return static_cast<T>(a | b);
}
template <typename T>
T xor_(T a, T b) {
  return static_cast<T>(a ^ b);
}
template <typename T>
T not_(T a) {
  if constexpr (std::is_same_v<T, bool>) return !a;
  return static_cast<T>(~a);
}
template <typename T>
T shl_(T a, uint32_t by) {
  return by < 8 * sizeof(T) ? static_cast<T>(a << by) : T{0};
}
template <typename T>
T shr_(T a, uint32_t by) {
  if (by < 8 * sizeof(T)) return static_cast<T>(a >> by);
  return static_cast<T>(a < 0 ? -1 : 0);
}
template <typename T>
T selp_(T a, T b, bool first) {
  return first ? a : b;
}
template <typename T>
T bfi_(T a, T b, uint32_t at, uint32_t length) {
  at &= 255, length &= 255;
  for (uint32_t i = 0; i < length && at + i < 8 * sizeof(T); ++i)
    b = static_cast<T>((b & ~(T{1} << (at + i))) | ((a >> i & 1) << (at + i)));
  return b;
}
inline uint32_t bfind_shiftamt_(uint32_t a) {
  return a ? std::countl_zero(a) : ~0u;
}
inline uint32_t brev_(uint32_t a) {
  uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (a >> i & 1) << (31 - i);
  return reversed;
}
template <typename T>
uint32_t clz_(T a) {
  return static_cast<uint32_t>(std::countl_zero(a));
}
template <typename T, typename S>
T cvt_(S a) {
  return static_cast<T>(a);
}
template <typename T, typename S>
T cvt_rzi_(S a) {
  if (std::isnan(a)) return sizeof(T) == 8 ? std::numeric_limits<T>::min() : T{0};
  if (a >= std::ldexp(S{1}, 8 * sizeof(T) - 1)) return std::numeric_limits<T>::max();
  if (a <= -std::ldexp(S{1}, 8 * sizeof(T) - 1)) return std::numeric_limits<T>::min();
  return static_cast<T>(a);
}
#define PTX_COMPARED(name, op)                       \
  template <typename T>                              \
  bool set_##name(T a, T b) {                        \
    return a op b;                                   \
  }                                                  \
  template <typename T>                              \
  bool set_##name##u(T a, T b) {                     \
    return std::isnan(a) || std::isnan(b) || a op b; \
  }
PTX_COMPARED(eq, ==)
PTX_COMPARED(lt, <)
PTX_COMPARED(le, <=)
PTX_COMPARED(gt, >)
PTX_COMPARED(ge, >=)
#undef PTX_COMPARED
template <typename T>
bool set_ne(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a) || std::isnan(b)) return false;
  return a != b;
}

// Memory. All spaces but shared memory have the host's addresses.
enum class Space { kGeneric, kGlobal, kShared, kParam, kLocal };
enum class Cache { kPlain, kNc, kCg };

inline uint64_t param_address(const Block& b, size_t begin) {
  return reinterpret_cast<uint64_t>(b.params + begin);
}

template <typename T>
std::byte* checked(Block& b, const Thread& t, Space space, uint64_t address, int width, int line) {
  const uint64_t bytes = sizeof(T) * width, params = param_address(b, 0);
  if (address % bytes) fault(b, t, line, "an access of " + std::to_string(bytes) + " bytes at an odd address");
  if (space == Space::kShared) {
    if (address < kSharedBase || address + bytes > kSharedBase + b.program.shared_bytes)
      fault(b, t, line, "an access outside of shared memory");
    return b.shared + (address - kSharedBase);
  }
  const auto own = reinterpret_cast<uint64_t>(&t);
  if (space == Space::kLocal && (address < own || address + bytes > own + b.program.thread_bytes))
    fault(b, t, line, "an access outside of the thread's own memory");
  const bool is_param = address >= params && address + bytes <= params + b.program.param_bytes;
  if (space == Space::kParam && !is_param) fault(b, t, line, "a parameter outside of the parameters");
  if (address < 65536) fault(b, t, line, "an access of address " + std::to_string(address));
  return reinterpret_cast<std::byte*>(address);
}

template <typename Note>
void checked_order(Block& b, const Thread& t, Space space, uint64_t address, uint64_t bytes, int width, int line,
                   Note&& note) {
  if (space == Space::kLocal) return;  // its own
  Shadow& shadow = space == Space::kShared ? b.shared_words : b.global_words;
  for (uint64_t at = address; at < address + width * bytes; at += bytes)
    if (const char* wrong = note(shadow.word(at, bytes), b.access(t))) fault(b, t, line, wrong);
}

template <typename T, int kWidth>
std::array<T, kWidth> load(Block& b, const Thread& t, Space space, Cache cache, uint64_t address, int line) {
  const std::byte* from = checked<T>(b, t, space, address, kWidth, line);
  if (space == Space::kShared || space == Space::kGlobal)
    checked_order(b, t, space, address, sizeof(T), kWidth, line, [&](Word& word, const Access& by) {
      if (space == Space::kShared && !word.is_written()) return "a read of shared memory that nobody wrote";
      return word.read(by, cache == Cache::kCg, cache == Cache::kNc);
    });
  if (space == Space::kGlobal && b.loads) b.loads->add(b.access(t).thread, line, address, sizeof(T) * kWidth);
  std::array<T, kWidth> values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}
template <typename T, int kWidth>
void store(Block& b, const Thread& t, Space space, uint64_t address, std::array<T, kWidth> values, int line) {
  if (space == Space::kParam) fault(b, t, line, "a parameter is written");
  std::byte* to = checked<T>(b, t, space, address, kWidth, line);
  const bool same = std::memcmp(to, &values, sizeof(values)) == 0;
  checked_order(b, t, space, address, sizeof(T), kWidth, line,
                [&](Word& word, const Access& by) { return word.write(by, same); });
  if (space == Space::kGlobal && b.stores) b.stores->add(b.access(t).thread, line, address, sizeof(T) * kWidth);
  std::memcpy(to, &values, sizeof(values));
}

template <typename T, typename Change>
T atom(Block& b, const Thread& t, Space space, uint64_t address, int line, Change&& change) {
  std::byte* at = checked<T>(b, t, space, address, 1, line);
  checked_order(b, t, space, address, sizeof(T), 1, line,
                [&](Word& word, const Access& by) { return word.atomic(by); });
  T before, after;
  std::memcpy(&before, at, sizeof(T));
  after = change(before);
  std::memcpy(at, &after, sizeof(T));
  return before;
}
template <typename T>
T atom_add(Block& b, const Thread& t, Space space, uint64_t address, T value, int line) {
  return atom<T>(b, t, space, address, line, [&](T was) { return add_(was, value); });
}
template <typename T>
T atom_min(Block& b, const Thread& t, Space space, uint64_t address, T value, int line) {
  return atom<T>(b, t, space, address, line, [&](T was) { return min_(was, value); });
}
template <typename T>
T atom_max(Block& b, const Thread& t, Space space, uint64_t address, T value, int line) {
  return atom<T>(b, t, space, address, line, [&](T was) { return max_(was, value); });
}
template <typename T>
T atom_cas(Block& b, const Thread& t, Space space, uint64_t address, T expected, T value, int line) {
  return atom<T>(b, t, space, address, line, [&](T was) { return was == expected ? value : was; });
}

}  // namespace ptx
