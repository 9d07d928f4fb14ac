// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of megakernel_cdna, whose elements are formats of weights.
// Compiled once for each XLSTM_ELEMENT of: Bfloat16Weights Float16Weights ByteWeights NibbleWeights
// Compiled once for each XLSTM_ELEMENT of: E4m3fnWeights E4m3fnuzWeights

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "arch/launch.h"
#include "engine/megakernel_cdna/megakernel_cdna.h"
#include "engine/megakernel_cdna/megakernel_cdna_launch.h"
#include "engine/megakernel_cdna/write_records.h"

namespace xlstm::gpu::engine {
namespace {

// Writes records of all blocks of the model: as many a launch as a kernel's params hold.
template <class Record>
struct RecordWriter {
  RecordsParams<Record> params;
  int pending = 0;

  RecordWriter(const Record& base, Record* to, int stride, int64_t shift_bytes) : params{} {
    params.base = base, params.to = to, params.stride = stride, params.shift_bytes = shift_bytes;
  }
  uint16_t offset_of(const void* member) const {
    return uint16_t(reinterpret_cast<const char*>(member) - reinterpret_cast<const char*>(&params.base));
  }
  // members of params.base.
  template <class T>
  void differs(T* const& member) {
    params.pointer_at[params.each++] = offset_of(&member);
  }
  template <class T>
  void shifts(T* const& member) {
    params.shift_at[params.shifts++] = offset_of(&member);
  }
  void add(std::span<const void* const> pointers, Stream stream) {
    if ((pending + 1) * params.each > params.kMost) flush(stream);
    std::ranges::copy(pointers, params.pointer + pending * params.each);
    ++pending;
  }
  void flush(Stream stream) {
    launch_write_records(params, pending, stream);
    params.first += pending, pending = 0;
  }
};

using Product = GemmParams BlockGemms::*;
constexpr Product kProducts[kCdnaProducts] = {&BlockGemms::projections, &BlockGemms::output, &BlockGemms::up,
                                              &BlockGemms::down};

// The params of a product of the first block of the model, with its x and outputs in mailboxes.
GemmParams params_of(const MegakernelCdnaPlan& plan, const MegakernelCdnaStep& step, int product, GemmParams of) {
  const Mailboxes& at = step.layout;
  float* const boxes = step.memory.mailboxes;
  constexpr Phase kPhaseOf[] = {Phase::projections, Phase::output, Phase::up, Phase::down, Phase::head};
  const Phase phase = kPhaseOf[product];
  of.units = plan.units[product], of.gate_units = plan.gate_units;
  of.x = boxes + at.from[int(phase)];
  if (phase == Phase::head) {
    of.residual = of.x += step.model.blocks * at.block;
    return of;
  }
  for (int j = 0; j < of.linear_count; ++j)
    of.to[j] = boxes + at.to[int(phase == Phase::projections && j == kOutputGate ? Phase::gate : phase)][j];
  // Loaded for every product, without a branch; added where Output::add says so.
  of.residual =
      of.output != Output::add ? of.x : boxes + at.from[int(phase == Phase::output ? Phase::projections : Phase::up)];
  return of;
}

void write_product(const MegakernelCdnaPlan& plan, const MegakernelCdnaStep& step, int product, Stream stream) {
  const int64_t block_bytes = step.layout.block * int64_t(sizeof(float));
  RecordWriter<GemmParams> writer(params_of(plan, step, product, step.block[0].*kProducts[product]),
                                  step.memory.product + product, kCdnaProducts, block_bytes);
  GemmParams& base = writer.params.base;
  writer.shifts(base.x);
  writer.shifts(base.residual);
  writer.differs(base.weight.data);
  for (int j = 0; j < base.linear_count; ++j) {
    if (j == 0 || base.output != Output::swiglu) writer.shifts(base.to[j]);
    writer.differs(base.linear[j].data), writer.differs(base.linear[j].scales);
    writer.differs(base.linear[j].offsets), writer.differs(base.linear[j].bias.data);
  }
  for (int64_t n = 0; n < step.model.blocks; ++n) {
    const GemmParams& of = step.block[n].*kProducts[product];
    std::vector<const void*> pointers{of.weight.data};
    for (const DeviceLinear& w : std::span(of.linear, size_t(of.linear_count)))
      pointers.insert(pointers.end(), {w.data, w.scales, w.offsets, w.bias.data});
    writer.add(pointers, stream);
  }
  writer.flush(stream);
}

void write_heads(const MegakernelCdnaStep& step, Stream stream) {
  const auto at = [&](Phase phase, int linear) { return step.memory.mailboxes + step.layout.to[int(phase)][linear]; };
  HeadsStepParams first = step.heads;
  first.q = at(Phase::projections, 0), first.k = at(Phase::projections, 1), first.v = at(Phase::projections, 2);
  first.o = at(Phase::gate, kOutputGate);
  first.i = at(Phase::projections, kFirstGate), first.f = at(Phase::projections, kFirstGate + 1);
  first.y = step.memory.mailboxes + step.layout.from[int(Phase::output)];
  RecordWriter<HeadsStepParams> writer(first, step.memory.heads, 1, step.layout.block * int64_t(sizeof(float)));
  HeadsStepParams& base = writer.params.base;
  for (const float* const* member : {&base.q, &base.k, &base.v, &base.o, &base.i, &base.f}) writer.shifts(*member);
  writer.shifts(base.y);
  writer.differs(base.c), writer.differs(base.n), writer.differs(base.m), writer.differs(base.arrived);
  writer.differs(base.weight.data), writer.differs(base.bias.data);
  for (int64_t n = 0; n < step.model.blocks; ++n) {
    const xlstm_decode_block& block = step.model.block[n];
    const void* const pointers[] = {block.c,
                                    block.n,
                                    block.m,
                                    first.arrived + n * step.model.heads,
                                    block.head_norm.weight.data,
                                    block.head_norm.bias.data};
    writer.add(pointers, stream);
  }
  writer.flush(stream);
}

}  // namespace

template <class Weights>
void launch_megakernel_cdna(const MegakernelCdnaPlan& plan, const MegakernelCdnaStep& step, Stream stream) {
  for (int product = 0; product < kCdnaProducts; ++product) write_product(plan, step, product, stream);
  const int products = int(step.model.blocks) * kCdnaProducts;
  RecordWriter<GemmParams> head(params_of(plan, step, kCdnaHead, step.head), step.memory.product + products, 1, 0);
  head.add({}, stream);
  head.flush(stream);
  write_heads(step, stream);
  Grid grid{plan.blocks, kRowCdnaThreads, plan.lds_bytes};
  grid.cooperative = true;
  const MegakernelCdnaParams params{step.memory.product, step.memory.heads, products + 1, plan.gate_blocks,
                                    plan.sums_at};
  launch("decode megakernel", megakernel_cdna<Weights>, grid, stream, params);
}

template void launch_megakernel_cdna<XLSTM_ELEMENT>(const MegakernelCdnaPlan&, const MegakernelCdnaStep&, Stream);

}  // namespace xlstm::gpu::engine
