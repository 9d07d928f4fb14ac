// SPDX-License-Identifier: Apache-2.0
#include "products.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "block.h"
#include "fault.h"
#include "plants.h"
#include "sync.h"

namespace emulator {
namespace {

constexpr int kRows = 64, kDepth = 16;  // of a product: rows of the sum; k

float bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }
float number(uint16_t bits, bool float16) { return float16 ? float(std::bit_cast<_Float16>(bits)) : bfloat16(bits); }

// An operand in shared memory as its descriptor says, in panels of 64 columns permuted in pieces of 16 bytes.
struct Operand {
  uint32_t start, next_panel, next_rows;
  bool across;

  Operand(uint64_t descriptor, bool runs_across)
      : start(uint32_t(descriptor & 0x3fff) << 4),
        next_panel(uint32_t(descriptor >> 16 & 0x3fff) << 4),
        next_rows(uint32_t(descriptor >> 32 & 0x3fff) << 4),
        across(runs_across) {
    if (descriptor >> 62 != 1) fault("multiplies by an operand that is not permuted over 128 bytes");
    if (descriptor >> 46 & 0xffff)
      fault(text("multiplies by an operand with other bits: %llx", (unsigned long long)descriptor));
    if (next_rows % 1024) fault(text("multiplies by an operand whose rows are %u bytes apart in eights", next_rows));
    if (across && next_panel % 1024)
      fault(text("multiplies by an operand whose panels are %u bytes apart", next_panel));
  }
  // Element k of row (of A) or column (of B) i.
  uint32_t at(int i, int k) const {
    const uint32_t u = uint32_t(i),
                   offset = across ? start + u / 64 * next_panel + k / 8 * next_rows + k % 8 * 128 + u % 64 * 2
                                   : start + u / 8 * next_rows + u % 8 * 128 + k * 2;
    return offset ^ (offset / 128 % 8 * 16);
  }
  // f(address, bytes) for the stretches of 16 bytes that its rows first to last - 1 consist of.
  template <class F>
  void each_vec16(int first, int last, F&& f) const {
    if (across) {
      for (int k = 0; k < kDepth; ++k)
        for (int i = first; i < last; i += 8) f(at(i, k), 16);
    } else {
      for (int i = first; i < last; ++i)
        for (int k = 0; k < kDepth; k += 8) f(at(i, k), 16);
    }
  }
  void read(Block& block, int count, bool float16, double* values) const {  // values[i][k]
    for (int i = 0; i < count; ++i)
      for (int k = 0; k < kDepth; ++k) {
        uint16_t bits;
        std::memcpy(&bits, block.dynamic + (at(i, k) - kFirstAddress), 2);
        values[i * kDepth + k] = number(bits, float16);
      }
  }
};

void check_operand(const Operand& operand, int first, int last, Party reader, uint32_t epoch) {
  Block& block = *running->block;
  operand.each_vec16(first, last, [&](uint32_t at, uint32_t bytes) {
    const char* p = block.at(at, bytes, "multiplies by");
    block.order->read(uint32_t(p - block.dynamic), bytes, SharedOrder::By::async, running->known, reader, epoch);
  });
}

int group_of(const Thread& t) { return t.index / kGroup; }

Sum& sum_of(Thread& thread, const float* at) {
  return *std::find_if(thread.sums.begin(), thread.sums.end(), [&](const Sum& s) { return s.at == at; });
}

void run(Block& block, int group, const IssuedProduct& p) {
  static double a[kRows * kDepth], b[256 * kDepth];
  if (p.a_in_registers) {
    for (int t = 0; t < kGroup; ++t)
      for (int w = 0; w < 4; ++w)
        for (int e = 0; e < 2; ++e) {
          const int row = t / kWarp * 16 + t % kWarp / 4 + 8 * (w % 2), k = 8 * (w / 2) + 2 * (t % 4) + e;
          a[row * kDepth + k] = number(uint16_t(p.left[t][w] >> (16 * e)), p.float16);
        }
  } else {
    Operand(p.a, p.a_across).read(block, kRows, p.float16, a);
  }
  Operand(p.b, p.b_across).read(block, p.columns, p.float16, b);
  for (int t = 0; t < kGroup; ++t) {
    float* sum = sum_of(*block.threads[group * kGroup + t], p.sum[t]).values.data();
    for (int i = 0; i < p.columns / 2; ++i) {
      const int row = t / kWarp * 16 + t % kWarp / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
      double x = 0;
      for (int k = 0; k < kDepth; ++k) x += a[row * kDepth + k] * b[column * kDepth + k];
      sum[i] = float((p.add ? double(sum[i]) : 0.0) + x);
    }
  }
}

void issue(Product product, float* sum, const uint32_t* a_registers) {
  if (planted(Bug::far_operand)) product.b |= (255 << 10) >> 4;
  if (planted(Bug::slipped_operand)) product.b += 32 >> 4;
  Thread& thread = *running;
  const int group = group_of(thread), in_group = thread.index % kGroup, registers = product.columns / 2;
  ProductGroup& products = thread.block->groups[group];
  if (!thread.begun) fault("multiplies without a fence before the group");
  const int nth = products.issued[in_group]++ - products.dropped;
  if (nth == int(products.products.size())) products.products.push_back({product, 0, {}, {}});
  IssuedProduct& p = products.products[nth];
  if (!(static_cast<const Product&>(p) == product)) fault("multiplies otherwise than its warpgroup");
  if (a_registers) std::copy_n(a_registers, 4, p.left[in_group].begin());
  p.sum[in_group] = sum;
  ++p.issued;

  const auto found = std::find_if(thread.sums.begin(), thread.sums.end(), [&](const Sum& s) { return s.at == sum; });
  if (found == thread.sums.end())
    thread.sums.push_back({sum, std::vector<float>(sum, sum + registers), thread.committed});
  else
    found->group = thread.committed;
  std::fill_n(sum, registers, NAN);

  if (thread.lane()) return;  // a warp's first lane speaks for it
  const Party party = thread.block->products_of(group);
  const uint32_t epoch = uint32_t(thread.committed) + 1;
  const int first = thread.warp() % 4 * 16;
  if (!product.a_in_registers) check_operand({product.a, product.a_across}, first, first + 16, party, epoch);
  check_operand({product.b, product.b_across}, 0, product.columns, party, epoch);
}

}  // namespace

void wgmma_fence() {
  if (!planted(Bug::products_fence)) running->begun = true;
}

void wgmma_commit() {
  Thread& thread = *running;
  const int group = group_of(thread);
  Block& block = *thread.block;
  ProductGroup& products = block.groups[group];
  thread.begun = false;
  products.committed[thread.index % kGroup] = ++thread.committed;
  const int complete = *std::min_element(products.committed.begin(), products.committed.end());
  if (complete == products.complete) return;
  products.complete = complete;
  cluster->later(block, [&block, &products, group] {  // the next group, whichever event it was
    while (!products.products.empty() && products.products.front().group == products.done) {
      run(block, group, products.products.front());
      products.products.pop_front();
      ++products.dropped;
    }
    ++products.done;
    products.queue.wake();
  });
}

void wgmma_wait(int but_the_last) {
  if (planted(Bug::wgmma_wait)) return;
  Thread& thread = *running;
  const int group = group_of(thread), until = thread.committed - but_the_last;
  ProductGroup& products = thread.block->groups[group];
  while (products.done < until) products.queue.wait({"products of warpgroup %d", group});
  if (until > 0) {
    uint32_t& over = thread.known.over[thread.block->products_of(group)];
    over = std::max(over, uint32_t(until));
  }
  std::erase_if(thread.sums, [&](Sum& sum) {
    if (sum.group >= until) return false;
    std::copy(sum.values.begin(), sum.values.end(), sum.at);
    return true;
  });
}

void wgmma_ss(float* sum, int columns, uint64_t a, bool a_across, uint64_t b, bool b_across, bool add, bool float16) {
  issue({a, b, columns, running->committed, false, a_across, b_across, add, float16}, sum, nullptr);
}
void wgmma_rs(float* sum, int columns, const uint32_t* a, uint64_t b, bool b_across, bool add, bool float16) {
  issue({0, b, columns, running->committed, true, false, b_across, add, float16}, sum, a);
}

// A and B of a warp in words of elements of one size, `in_word` of them. Lane 4 g + t has of A rows g and g + 8, of B
// column g, of both word t of k's first half and of its second; of the sum columns 2 t and 2 t + 1 of its rows.
namespace {

template <class Number, class Element>
void add_products(Number* sum, const uint32_t* a, uint32_t b0, uint32_t b1, int in_word, Element&& element) {
  const int lane = running->lane(), half = 4 * in_word;
  double rows[2][2 * 16], columns[2][2 * 16];
  for (int high = 0; high < 2; ++high) {  // k's half
    const uint64_t* all = exchange(uint64_t(a[2 * high + 1]) << 32 | a[2 * high]);
    for (int k = 0; k < half; ++k)
      for (int r = 0; r < 2; ++r)
        rows[r][half * high + k] = element(uint32_t(all[lane / 4 * 4 + k / in_word] >> (32 * r)), k % in_word);
  }
  const uint64_t* all = exchange(uint64_t(b1) << 32 | b0);
  for (int k = 0; k < 2 * half; ++k)
    for (int c = 0; c < 2; ++c)
      columns[c][k] =
          element(uint32_t(all[(lane % 4 * 2 + c) * 4 + k % half / in_word] >> (32 * (k / half))), k % in_word);
  for (int r = 0; r < 2; ++r)
    for (int c = 0; c < 2; ++c) {
      double product = 0;
      for (int k = 0; k < 2 * half; ++k) product += rows[r][k] * columns[c][k];
      sum[2 * r + c] = Number(double(sum[2 * r + c]) + product);
    }
}

}  // namespace

void multiply_warp(float* sum, const uint32_t* a, uint32_t b0, uint32_t b1) {
  add_products(sum, a, b0, b1, 2, [](uint32_t word, int n) { return double(bfloat16(uint16_t(word >> (16 * n)))); });
}
void multiply_warp_of_bytes(int* sum, const uint32_t* a, uint32_t b0, uint32_t b1) {
  add_products(sum, a, b0, b1, 4, [](uint32_t word, int n) { return double(int8_t(word >> (8 * n))); });
}

}  // namespace emulator
