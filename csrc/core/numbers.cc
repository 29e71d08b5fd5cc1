#include "core/numbers.h"

#include <algorithm>
#include <cmath>

#include "core/wide.h"

namespace glt {
namespace {

constexpr int64_t kFew = 48;

template <typename Id>
int64_t find_one_by_one(uint32_t bound, uint64_t key, const Id* node, int64_t first, int64_t n, uint32_t* position,
                        int64_t num_found) {
  for (int64_t i = first; i < n; ++i) {  // without branches, which would not be foreseen
    position[num_found] = static_cast<uint32_t>(i);
    num_found += number_high(key, node[i]) <= bound;
  }
  return num_found;
}

#if defined(__x86_64__)

template <int kShift>
GLT_WIDE inline __m256i step(__m256i x, uint32_t factor) {
  return _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, kShift)), _mm256_set1_epi32(factor));
}

GLT_WIDE inline __m256i mixed(__m256i x, __m256i key) {
  x = step<17>(x, 0xED5AD4BBu);
  x = _mm256_add_epi32(step<11>(x, 0xAC4C1B51u), key);
  x = step<15>(x, 0x31848BABu);
  return _mm256_xor_si256(x, _mm256_srli_epi32(x, 14));
}

// What is mixed of eight nodes.
GLT_WIDE inline __m256i folded(const int32_t* node, __m256i key) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(node));
  const __m256i of_top = _mm256_and_si256(_mm256_srai_epi32(low, 31), _mm256_set1_epi32(-kNumberTop));  // times 0 or -1
  return _mm256_add_epi32(_mm256_xor_si256(low, key), of_top);
}
GLT_WIDE inline __m256i folded(const int64_t* node, __m256i key) {
  const __m256 first = _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(node)));
  const __m256 second = _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(node + 4)));
  const __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0b10001000));
  const __m256i top = _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0b11011101));
  const __m256i both =
      _mm256_add_epi32(_mm256_xor_si256(low, key), _mm256_mullo_epi32(top, _mm256_set1_epi32(kNumberTop)));
  return _mm256_permute4x64_epi64(both, 0b11011000);  // in order
}

template <typename Id>
GLT_WIDE int64_t find_by_lanes(uint32_t bound, uint64_t key, const Id* node, int64_t n, uint32_t* position) {
  const __m256i most = _mm256_set1_epi32(static_cast<int>(bound));
  const __m256i low_key = _mm256_set1_epi32(static_cast<int>(key)), high_key = _mm256_set1_epi32(key >> 32);
  int64_t num_found = 0;
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const __m256i number = mixed(folded(node + i, low_key), high_key);
    const __m256i is_kept = _mm256_cmpeq_epi32(_mm256_min_epu32(number, most), number);
    num_found += write_lanes(_mm256_movemask_ps(_mm256_castsi256_ps(is_kept)), i, position + num_found);
  }
  return find_one_by_one(bound, key, node, whole, n, position, num_found);
}

#endif

// Writes the positions, ascending, of those of node[0, n) with numbers whose high half is `bound` or below; returns how
// many. `position` has room for n.
template <typename Id>
int64_t find_up_to(uint32_t bound, uint64_t key, const Id* node, int64_t n, uint32_t* position) {
#if defined(__x86_64__)
  if (has_lanes()) return find_by_lanes(bound, key, node, n, position);
#endif
  return find_one_by_one(bound, key, node, 0, n, position, 0);
}

}  // namespace

void LowestNumbers::start(uint64_t key, int64_t count, int64_t num_edges) {
  key_ = key;
  count_ = count;
  number_.clear();
  edge_.clear();
  // How many numbers are below a bound is binomial: four deviations above `count` are nearly always enough.
  const double enough = static_cast<double>(count) + 4 * std::sqrt(static_cast<double>(count)) + 4;
  const double share = enough / static_cast<double>(num_edges);
  bound_ = share < 0.9 ? static_cast<uint32_t>(share * 0x1p32) : UINT32_MAX;
}

template <typename Id>
void LowestNumbers::offer(const Id* neighbor, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 512;
  uint32_t position[kBlock];
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t n = std::min(kBlock, end - first);
    const int64_t num_found = find_up_to(bound_, key_, neighbor + first, n, position);
    number_.reserve_more(num_found);
    edge_.reserve_more(num_found);
    for (int64_t k = 0; k < num_found; ++k) {
      number_.end()[k] = number_of(key_, neighbor[first + position[k]]);
      edge_.end()[k] = first + position[k];
    }
    number_.added(num_found);
    edge_.added(num_found);
  }
}

template void LowestNumbers::offer(const int32_t*, int64_t, int64_t);
template void LowestNumbers::offer(const int64_t*, int64_t, int64_t);

bool LowestNumbers::are_enough() {
  if (number_.size() >= count_) return true;
  bound_ = UINT32_MAX;
  number_.clear();
  edge_.clear();
  return false;
}

// Of few edges each is compared with all. Returns false, with nothing said, if high halves do not tell which to take.
bool LowestNumbers::take_few(int64_t* position) const {
  const int64_t n = number_.size();
  uint32_t high[kFew];
  for (int64_t i = 0; i < n; ++i) high[i] = static_cast<uint32_t>(number_[i] >> 32);
  int64_t num_taken = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t num_below = 0;
    for (int64_t j = 0; j < n; ++j) num_below += high[j] < high[i];
    position[num_taken] = edge_[i];
    num_taken += num_below < count_;
    if (num_taken > count_) return false;  // equal ones
  }
  return true;
}

void LowestNumbers::take(int64_t* position) {
  if (number_.size() <= kFew && take_few(position)) return;
  sorted_.clear();
  sorted_.append(number_.data(), number_.size());
  std::nth_element(sorted_.data(), sorted_.data() + count_ - 1, sorted_.end());
  const uint64_t most = sorted_[count_ - 1];
  int64_t num_equal = count_;  // that are taken
  for (int64_t i = 0; i < count_; ++i) num_equal -= sorted_[i] < most;
  for (int64_t i = 0; i < number_.size(); ++i) {  // without branches, which would not be foreseen
    const bool is_equal = number_[i] == most && num_equal > 0;
    num_equal -= is_equal;
    *position = edge_[i];
    position += number_[i] < most || is_equal;
  }
}

}  // namespace glt
