// What the core computes from one fixed input, one line per part: a name and a hash of all results. A build for another
// processor must print the same lines. It is a program of its own, so that an emulator can run it without Python.
#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "core/batch.h"
#include "core/block_file.h"
#include "core/fennel.h"
#include "core/gather.h"
#include "core/hotness.h"
#include "core/row_table.h"
#include "core/row_update.h"
#include "core/shm_ring.h"
#include "core/weights.h"

namespace {

using namespace glt;

constexpr int64_t kNodes = 3000, kEdges = 60000;

class Hash {  // FNV-1a
 public:
  template <typename T>
  void add(const T* data, int64_t n) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(data);
    for (size_t i = 0; i < n * sizeof(T); ++i) value_ = (value_ ^ bytes[i]) * 0x100000001B3u;
  }
  void print(const char* name) const { std::printf("%s %016" PRIx64 "\n", name, value_); }

 private:
  uint64_t value_ = 0xCBF29CE484222325u;
};

// Random bits by position; a processor's own generator would be no fixed input.
uint64_t bits_at(uint32_t purpose, uint64_t at) {
  return NodeDraws(/*batch_key=*/2026, /*hop=*/0, purpose, at)(0);
}

// A graph with a few hubs, weights and times.
struct World {
  std::vector<int64_t> row, col, indptr, indices, edge_ids, time;
  std::vector<float> weight;
  std::vector<uint64_t> weight_sum;
  std::vector<uint32_t> weight_guide;

  World()
      : row(kEdges),
        col(kEdges),
        indptr(kNodes + 1),
        indices(kEdges),
        edge_ids(kEdges),
        time(kEdges),
        weight(kEdges),
        weight_sum(kEdges),
        weight_guide(weight_guide_size(kNodes, kEdges)) {
    for (int64_t e = 0; e < kEdges; ++e) {
      row[e] = static_cast<int64_t>(bounded(bits_at(0, e), e % 8 ? kNodes : 20));
      col[e] = static_cast<int64_t>(bounded(bits_at(1, e), kNodes));
      weight[e] = e % 11 ? static_cast<float>(bits_at(2, e) >> 40) / 977.0f : 0.0f;
    }
    const CsrInput edges{
        row.data(), col.data(), static_cast<const int64_t*>(nullptr), nullptr, kEdges, kNodes, kNodes, kNodes,
        "row",      "col"};
    build_csr(edges, {indptr.data(), indices.data(), edge_ids.data()});
    for (int64_t v = 0; v < kNodes; ++v)  // never falling within a row
      for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e) time[e] = (e - indptr[v]) * 3;
    build_weights(indptr.data(), kNodes, weight.data(), weight_sum.data(), weight_guide.data(), "weight");
  }

  CsrView view() const {
    CsrView csr;
    csr.indptr = indptr.data();
    csr.indices = indices.data();
    csr.has_edge_ids = true;
    csr.edge_ids = edge_ids.data();
    csr.num_rows = csr.num_nodes = csr.num_neighbor_nodes = kNodes;
    csr.num_edges = kEdges;
    return csr;
  }
};

void print(const char* name, const Batch& batch) {
  const EdgeSet& edges = batch.edges(0);
  const int64_t n = edges.row.size();
  std::vector<int64_t> row(n), col(n), edge(n), node(batch.nodes(0).size());
  edges.copy_to(row.data(), col.data(), edge.data(), 1);
  batch.nodes(0).copy_to(node.data(), nullptr, 1);
  Hash hash;
  for (const auto* part : {&row, &col, &edge, &node}) hash.add(part->data(), static_cast<int64_t>(part->size()));
  hash.print(name);
}

std::vector<int64_t> seeds_of_batches() {
  std::vector<int64_t> seeds(200);
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = static_cast<int64_t>(bounded(bits_at(3, i), kNodes));
  return seeds;
}

void sample(const char* name, const CsrView& csr, bool replace, bool latest_only, bool disjoint, int num_threads) {
  const std::vector<int64_t> seeds = seeds_of_batches();
  std::vector<int64_t> seed_time(200);
  for (size_t i = 0; i < seeds.size(); ++i) seed_time[i] = static_cast<int64_t>(i);
  Batch batch({kNodes}, {{0, 0}}, /*dense_limit=*/kNodes);
  BatchSpec spec;
  spec.num_neighbors = {{12, 5, -1}};
  spec.replace = replace;
  spec.batch_key = 77;
  spec.latest_only = latest_only;
  batch.start({{0, seeds.data(), 200}}, true, disjoint, csr.time ? seed_time.data() : nullptr, csr.time ? 200 : 0);
  if (disjoint) spec.num_neighbors = {{6, 3}};
  batch.sample({PartedCsr(csr)}, spec, num_threads);
  print(name, batch);
}

// Both look at neighbours eight at a time, where the processor can, and at the last ones of a row one by one.
void sample_by_number(const char* name, const CsrView& csr) {
  const std::vector<int64_t> seeds = seeds_of_batches();
  Batch batch({kNodes}, {{0, 0}}, /*dense_limit=*/0);
  BatchSpec spec;
  spec.num_neighbors = {{12, 60}};
  spec.batch_key = 77;
  spec.by_number = true;
  spec.shared_key = 0x123456789ABCDEF0u;
  batch.start({{0, seeds.data(), 200}}, true, false, nullptr, 0);
  batch.sample({PartedCsr(csr)}, spec, 1);
  print(name, batch);
}

void induce(const char* name, const CsrView& csr, bool disjoint) {
  const std::vector<int64_t> seeds = seeds_of_batches();
  Batch batch({kNodes}, {{0, 0}}, /*dense_limit=*/disjoint ? 0 : kNodes);
  batch.start({{0, seeds.data(), 200}}, true, disjoint, nullptr, 0);
  BatchSpec spec;
  spec.num_neighbors = {{4}};
  spec.batch_key = 77;
  batch.sample({PartedCsr(csr)}, spec, 1);
  batch.induce({PartedCsr(csr)}, 1);
  print(name, batch);
}

void draw_negatives(const World& world) {
  NegativeDraws draws;
  draws.batch_key = 5;
  draws.num_nodes = 1000;
  std::vector<uint64_t> sum(1000);
  uint64_t total = 0;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = total += world.weight_sum[i] % 1000;
  draws.weight_sum = sum.data();
  std::vector<int64_t> slot(500), attempt(500, 3), out(500);
  for (size_t i = 0; i < slot.size(); ++i) slot[i] = static_cast<int64_t>(i);
  draws.fill(slot.data(), attempt.data(), 500, out.data());
  Hash hash;
  hash.add(out.data(), 500);
  hash.print("negatives");
}

void forecast_hotness(const CsrView& csr, bool weighted) {
  std::vector<float> found(2 * kNodes);
  for (int64_t v = 0; v < kNodes; ++v) {
    found[2 * v] = static_cast<float>(bits_at(4, v) >> 40) * 0x1p-26f;
    found[2 * v + 1] = found[2 * v] + (1 - found[2 * v]) * 0.3f;
  }
  const int64_t num_neighbors[] = {5, 3};
  std::vector<uint64_t> mutual((kEdges + 63) / 64), repeated((kEdges + 63) / 64);
  find_mutual(csr, csr, mutual.data(), 2);
  find_repeated(csr, repeated.data(), 2);
  HotnessHop at;
  at.csr = at.back = &csr;
  at.num_neighbors = at.back_neighbors = num_neighbors;
  at.weighted = weighted;
  at.hop = 1;
  at.expanded = at.neighbor = found.data();
  at.num_columns = 2;
  at.repeated = repeated.data();
  at.mutual = mutual.data();
  std::vector<int64_t> doubt(kNodes);
  add_doubt(at, doubt.data(), 2);
  // In 2^-30 rather than 2^-40: the exponential and the logarithm are those of the C library, whose last digits differ.
  for (int64_t& each : doubt) each >>= 10;
  Hash hash;
  hash.add(mutual.data(), static_cast<int64_t>(mutual.size()));
  hash.add(repeated.data(), static_cast<int64_t>(repeated.size()));
  hash.add(doubt.data(), kNodes);
  hash.print(weighted ? "hotness by weight" : "hotness");
}

void update_table() {
  constexpr int64_t kRows = 100, kDim = 19, kGradients = 400;
  std::vector<float> weights(kRows * kDim), mean(kRows * kDim), square(kRows * kDim), grads(kGradients * kDim);
  std::vector<int64_t> rows(kGradients);
  const auto number = [](uint64_t at) { return static_cast<float>(bits_at(5, at) >> 41) * 0x1p-22f - 1; };
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = number(i);
  for (size_t i = 0; i < grads.size(); ++i) grads[i] = number(i + 100000);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(bounded(bits_at(6, i), kRows));
  const auto table = [&](std::vector<float>& values) {
    return RowTable(reinterpret_cast<std::byte*>(values.data()), kRows, kDim * 4);
  };
  RowTable weight_table = table(weights), means = table(mean), squares = table(square);
  const RowMerge merge({{rows.data(), grads.data(), kGradients}}, kRows, kDim);
  update_rows(merge, weight_table, Number::kFloat32, AdamStep{means, squares, 0.5f, 0.01f, 0.1f, 0.001f, 1e-8f}, 2);
  update_rows(merge, weight_table, Number::kFloat32, AdagradStep{squares, 0.5f, 0.1f, 1e-10f}, 2);
  Hash hash;
  for (const auto* part : {&weights, &mean, &square}) hash.add(part->data(), kRows * kDim);
  hash.print("optimizers");
}

void gather(const World& world) {
  Hash hash;
  for (const int64_t row_bytes : {4, 12, 100, 512}) {
    std::vector<std::byte> table(row_bytes * 100), out(row_bytes * 5000);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(bits_at(7, i));
    std::vector<int64_t> ids(5000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = world.col[i] % 100;
    const RowSource source{.table = table.data(), .num_rows = 100, .ids = ids.data(), .n = 5000};
    gather_rows({source, row_bytes, out.data(), 5000}, 2);
    hash.add(out.data(), static_cast<int64_t>(out.size()));
    const uint32_t sum = crc32(out.data(), out.size());
    hash.add(&sum, 1);
  }
  hash.print("gather and checksum");
}

void cut(const World& world) {
  std::vector<uint8_t> owner(kNodes);
  const int64_t label_cap = kNodes / 4 + 50;
  const Balance balance{4, nullptr, 1, &label_cap, {}, 0, nullptr};
  const Adjacency graph{world.indptr.data(), world.indices.data(), kNodes};
  int64_t num_cut[2];
  for (int pass = 0; pass < 2; ++pass)
    num_cut[pass] = fennel_pass(graph, balance, /*penalty=*/7.5, pass == 0, 9, owner.data());
  Hash hash;
  hash.add(num_cut, 2);
  hash.add(owner.data(), kNodes);
  hash.print("fennel");
}

// Two threads and a small ring: waits, pieces and reuse of memory.
void pass_messages() {
  const uint64_t size = RingView::region_bytes(1 << 16, 8);
  auto* region = static_cast<uint8_t*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  RingView::format(region, size, 1 << 16, 8);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  const auto pool = BlockPool::create(1 << 22);
  constexpr int kMessages = 300;
  std::thread sender([&] {
    const auto producer = RingProducer::create(region, size, nullptr, pool);
    for (int i = 0; i < kMessages; ++i) {
      const uint64_t nbytes = bounded(bits_at(8, i), i % 10 ? 20000 : 200000) + 1;
      std::shared_ptr<RingProducer::Reservation> room;
      if (producer->reserve(nbytes, deadline, room) != RingStatus::kOk) return;
      for (uint64_t b = 0; b < nbytes; ++b) room->data()[b] = static_cast<uint8_t>(b * 7 + i);
      room->commit();
    }
    producer->close(deadline);
  });
  const auto consumer = RingConsumer::create(region, size, nullptr, pool);
  Hash hash;
  std::optional<RingConsumer::Message> message;
  int received = 0;
  for (; consumer->receive(deadline, message) == RingStatus::kOk; ++received) {
    hash.add(message->data(), static_cast<int64_t>(message->nbytes()));
    message.reset();
  }
  consumer->close();
  sender.join();
  hash.add(&received, 1);
  hash.print("ring");
}

}  // namespace

int main() {
  const World world;
  CsrView plain = world.view(), weighted = plain, timed = plain;
  weighted.weight_sum = world.weight_sum.data();
  weighted.weight_guide = world.weight_guide.data();
  timed.time = world.time.data();
  Hash hash;
  hash.add(world.indices.data(), kEdges);
  hash.add(world.weight_sum.data(), kEdges);
  hash.add(world.weight_guide.data(), static_cast<int64_t>(world.weight_guide.size()));
  hash.print("graph and weights");
  sample("uniform", plain, false, false, false, 1);
  sample("uniform, three threads", plain, false, false, false, 3);
  sample("with replacement", plain, true, false, false, 1);
  sample("by weight", weighted, false, false, false, 1);
  sample("by weight, with replacement", weighted, true, false, false, 1);
  sample("by time, disjoint", timed, false, false, true, 1);
  sample("latest, disjoint", timed, false, true, true, 1);
  const std::vector<int32_t> narrow(world.indices.begin(), world.indices.end());
  CsrView of_int32 = plain;
  of_int32.indices = narrow.data();
  sample_by_number("by number", plain);
  sample_by_number("by number, int32", of_int32);
  sample_by_number("by number and weight", weighted);
  induce("induced", plain, false);
  induce("induced, int32", of_int32, false);
  induce("induced, disjoint", of_int32, true);
  draw_negatives(world);
  forecast_hotness(plain, false);
  forecast_hotness(weighted, true);
  update_table();
  gather(world);
  cut(world);
  pass_messages();
}
