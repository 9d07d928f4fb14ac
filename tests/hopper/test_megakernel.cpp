// SPDX-License-Identifier: Apache-2.0
// A whole step of one row, and of up to eight, in one launch (csrc/engine/megakernel/), token after token, beside the
// CPU's kernels with the same weights: every format, dims that parts and slots do not fill, both gates, several blocks
// and clusters of the grid.
//
// What a tensor may be off by is of its numbers' size, at least 1. The CPU multiplies with floats. Here of x 16 bits
// are seen beside bfloat16 and 22 beside bytes and nibbles, so logits and states may be off by some 2^-17 or 2^-22 of
// what their products' sizes are, for each product before them.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "arch/chip.h"
#include "check.h"
#include "device.h"
#include "engine/kernels.h"
#include "fault.h"
#include "numbers.h"
#include "plants.h"
#include "xlstm_hip.h"

using namespace xlstm;

namespace {

struct Case {
  int bits, units;  // multiprocessors
  int dim, heads, dqk, dhv, ffn, vocab, blocks = 2;
  int group = 64;
  bool offsets = false, sigmoid = false, caps = true, quantised_gates = false;
  int batch = 1;
};

std::string described(const Case& c) {
  return std::to_string(c.bits) + " bits, dim " + std::to_string(c.dim) + ", " + std::to_string(c.heads) +
         " heads of " + std::to_string(c.dqk) + "/" + std::to_string(c.dhv) + ", ffn " + std::to_string(c.ffn) + ", " +
         std::to_string(c.units) + " multiprocessors" + (c.offsets ? ", offsets" : "") +
         (c.sigmoid ? ", sigmoid" : "") + (c.batch > 1 ? ", batch " + std::to_string(c.batch) : "");
}

uint16_t brain(double x) { return uint16_t(__builtin_bit_cast(uint32_t, float(x)) >> 16); }
uint16_t half(double x) { return __builtin_bit_cast(uint16_t, _Float16(x)); }

// All that a model's tensors lie in.
class Model {
 public:
  explicit Model(const Case& of) : c(of), block(size_t(of.blocks)) {
    for (xlstm_decode_block& b : block) {
      const int keys = c.heads * c.dqk, values = c.heads * c.dhv;
      b.norm_mlstm = norm(c.dim), b.head_norm = norm(values), b.norm_ffn = norm(c.dim);
      b.q = linear(keys, c.dim), b.k = linear(keys, c.dim), b.v = linear(values, c.dim), b.o = linear(values, c.dim);
      b.i = gate(), b.f = gate();
      b.out = linear(c.dim, values), b.gate = linear(c.ffn, c.dim), b.up = linear(c.ffn, c.dim);
      b.down = linear(c.dim, c.ffn);
    }
    embedding = brains(size_t(c.vocab) * size_t(c.dim), 1);
    out_norm = norm(c.dim), head = linear(c.vocab, c.dim);
  }

  Case c;
  std::vector<xlstm_decode_block> block;
  const void* embedding;
  xlstm_dtype embedding_dtype = XLSTM_BFLOAT16;
  xlstm_decode_norm out_norm;
  xlstm_linear head;

 private:
  template <class T>
  T* allocate(size_t count) {
    memory_.emplace_back(count * sizeof(T) + 16);
    return reinterpret_cast<T*>(memory_.back().data());
  }
  const void* brains(size_t count, double size, double about = 0) {
    uint16_t* const to = allocate<uint16_t>(count);
    for (size_t n = 0; n < count; ++n) to[n] = brain(about + size * number_());
    return to;
  }
  xlstm_decode_norm norm(int features) { return {{brains(size_t(features), 0.2, 1), XLSTM_BFLOAT16}, {}}; }
  xlstm_linear gate() {
    xlstm_linear w = c.quantised_gates ? linear(c.heads, c.dim) : plain(c.heads, c.dim);
    w.bias = {brains(size_t(c.heads), 1), XLSTM_BFLOAT16};
    return w;
  }
  xlstm_linear plain(int rows, int columns) {
    const void* const data = brains(size_t(rows) * size_t(columns), 1 / std::sqrt(columns));
    return {rows, columns, 0, XLSTM_CODE_INTEGER, 0, XLSTM_BFLOAT16, data, nullptr, nullptr, {}};
  }
  xlstm_linear linear(int rows, int columns) {
    if (c.bits == 16) return plain(rows, columns);
    const size_t groups = size_t((columns + c.group - 1) / c.group), all = size_t(rows) * groups;
    const double size = (c.bits == 8 ? 1 / 64.0 : 1 / 4.0) / std::sqrt(columns);
    uint16_t* const scales = allocate<uint16_t>(all);
    for (size_t n = 0; n < all; ++n) scales[n] = half(size * (1 + 0.2 * std::abs(number_())));
    uint16_t* const offsets = c.offsets ? allocate<uint16_t>(all) : nullptr;
    for (size_t n = 0; offsets && n < all; ++n) offsets[n] = half(-size * (c.bits == 4 ? 8 : 1) * std::abs(number_()));
    const size_t bytes = all * size_t(c.group) * size_t(c.bits) / 8;
    uint8_t* const data = allocate<uint8_t>(bytes);
    for (size_t n = 0; n < bytes; ++n) data[n] = uint8_t(number_.integer(0, 255));
    return {rows, columns, c.bits, XLSTM_CODE_INTEGER, c.group, XLSTM_FLOAT16, data, scales, offsets, {}};
  }

  Numbers number_{11};
  std::vector<std::vector<char>> memory_;
};

struct States {
  std::vector<std::vector<float>> c, n, m;

  States(const Case& of, Numbers& number) {
    const auto drawn = [&](size_t count, double size) {
      std::vector<float> x(count);
      for (float& v : x) v = float(size * number());
      return x;
    };
    const size_t heads = size_t(of.heads) * size_t(of.batch), keys = size_t(of.dqk), values = size_t(of.dhv);
    for (int b = 0; b < of.blocks; ++b) {
      c.push_back(drawn(heads * keys * values, 1)), n.push_back(drawn(heads * keys, 1)), m.push_back(drawn(heads, 1));
      if (of.sigmoid) m.back().assign(heads, 0);
    }
  }
};

xlstm_decode call_of(const Model& model, std::vector<xlstm_decode_block>& block, States& states, const int64_t* token,
                     float* out) {
  const Case& c = model.c;
  block = model.block;
  for (size_t b = 0; b < block.size(); ++b)
    block[b].c = states.c[b].data(), block[b].n = states.n[b].data(), block[b].m = states.m[b].data();
  xlstm_decode p{};
  p.batch = c.batch, p.dim = c.dim, p.heads = c.heads, p.dqk = c.dqk, p.dhv = c.dhv, p.ffn = c.ffn, p.vocab = c.vocab;
  p.blocks = c.blocks, p.tokens = token, p.block = block.data(), p.out = out;
  p.embedding = {model.embedding, model.embedding_dtype};
  p.out_norm = model.out_norm, p.head = model.head;
  p.normalize = 1;
  p.gate = c.sigmoid ? XLSTM_GATE_SIGMOID : XLSTM_GATE_EXP;
  p.norm_eps = 1e-6, p.eps = 1e-6;
  if (c.caps) p.gate_cap = 15, p.output_cap = 30;
  return p;
}

// tokens: of all rows, then those of the next step.
struct Steps {
  std::vector<float> logits;
  States states;
};
Steps on_cpu(const Model& model, const States& begun, const std::vector<int64_t>& tokens) {
  Steps s{std::vector<float>(tokens.size() * size_t(model.c.vocab)), begun};
  std::vector<xlstm_decode_block> block;
  for (size_t t = 0; t < tokens.size(); t += size_t(model.c.batch)) {
    const xlstm_decode p = call_of(model, block, s.states, &tokens[t], s.logits.data() + t * size_t(model.c.vocab));
    std::vector<char> workspace(xlstm_decode_workspace(&p, 1));
    xlstm_runtime with{};
    with.threads = 1, with.workspace = workspace.data(), with.workspace_bytes = workspace.size();
    CHECK(xlstm_decode_step(&p, &with) == XLSTM_OK, "%s", xlstm_last_error());
  }
  return s;
}
Steps on_gpu(const Model& model, const States& begun, const std::vector<int64_t>& tokens) {
  Steps s{std::vector<float>(tokens.size() * size_t(model.c.vocab)), begun};
  std::vector<xlstm_decode_block> block;
  const gpu::Chip chip{gpu::Family::nvidia, model.c.units, 227 << 10, true};
  for (size_t t = 0; t < tokens.size(); t += size_t(model.c.batch)) {
    const xlstm_decode p = call_of(model, block, s.states, &tokens[t], s.logits.data() + t * size_t(model.c.vocab));
    std::vector<char> workspace(gpu::engine::decode_workspace(p, chip) + 256, char(0xff));
    void* const from = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 255) & ~uintptr_t(255));
    gpu::engine::decode_step(p, chip, from, nullptr);
  }
  return s;
}

double off(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, size = 0;
  for (size_t n = 0; n < want.size(); ++n) {
    const double e = double(got[n]) - double(want[n]);
    error += e * e, size += double(want[n]) * double(want[n]);
  }
  return std::sqrt(error / std::max(size, double(want.size())));
}

// The first rows' first tokens are 3 and the vocabulary's last.
std::vector<int64_t> tokens_of(const Case& c, int steps) {
  std::vector<int64_t> tokens;
  for (int n = 0; n < steps * c.batch; ++n) tokens.push_back(n == 0 ? 3 : (c.vocab - n) % c.vocab);
  return tokens;
}

void compare(const Case& c) {
  const Model model(c);
  Numbers number(11);
  const States begun(c, number);
  const std::vector<int64_t> tokens = tokens_of(c, 2);
  const Steps want = on_cpu(model, begun, tokens), got = on_gpu(model, begun, tokens);
  const double may = c.bits == 16 ? 0x1p-15 : 0x1p-18;
  const auto check = [&](const char* name, const std::vector<float>& a, const std::vector<float>& b) {
    const double error = off(a, b);
    if (std::getenv("HOPPER_FIGURES")) std::printf("%s: %s off by %.2g\n", described(c).c_str(), name, error);
    CHECK(error <= may, "%s: %s off by %.2g of its size, %.2g may be", described(c).c_str(), name, error, may);
  };
  check("logits", got.logits, want.logits);
  for (size_t b = 0; b < begun.c.size(); ++b) {
    check("C", got.states.c[b], want.states.c[b]);
    check("n", got.states.n[b], want.states.n[b]);
    if (!c.sigmoid) check("m", got.states.m[b], want.states.m[b]);
  }
}

// Parts of two, four and eight warps; slots that a part does not fill, and parts of several slots; groups of two steps;
// more tiles of C than blocks, and blocks without one; rows of a vocabulary that are no whole item.
const std::vector<Case> kCases = {
    {16, 2, 192, 2, 16, 64, 2112, 100},
    {8, 3, 256, 2, 32, 128, 576, 72},
    {8, 5, 128, 8, 8, 64, 1152, 40, 1, 64, true, false, false, true},
    {4, 2, 320, 1, 24, 320, 448, 80, 1, 64, true},
    {4, 3, 128, 2, 16, 128, 4672, 56, 1, 128, false, true},
};
// Clusters of two, four and eight blocks, of which several; batches that fill the rows and that do not; phases of fewer
// parts than blocks; more tiles of C than groups of threads, and several rounds of items.
const std::vector<Case> kRowCases = {
    {16, 5, 192, 2, 16, 64, 576, 100, 2, 64, false, false, true, false, 2},
    {16, 3, 128, 1, 8, 64, 192, 24, 1, 64, false, false, true, false, 4},
    {16, 3, 128, 1, 8, 64, 192, 24, 1, 64, false, false, true, false, 7},
    {8, 9, 128, 8, 8, 64, 1152, 40, 1, 64, true, false, false, false, 2},
    {8, 5, 256, 2, 32, 128, 576, 72, 2, 64, false, false, true, false, 8},
    {4, 9, 320, 1, 24, 320, 576, 2120, 1, 64, true, false, true, false, 3},
    {4, 5, 128, 2, 16, 128, 576, 56, 1, 128, false, true, true, false, 5},
};

// A bug is reported, or the step is wrong.
void check_planted(const Case& c, emulator::Bug bug, const char* name) {
  const Model model(c);
  Numbers number(11);
  const States begun(c, number);
  const std::vector<int64_t> tokens = tokens_of(c, 1);
  const Steps want = on_gpu(model, begun, tokens);
  emulator::plant(bug);
  bool found = false;
  try {
    const Steps got = on_gpu(model, begun, tokens);
    found = got.logits != want.logits || got.states.n != want.states.n;
  } catch (const emulator::Fault&) {
    found = true;
  }
  emulator::plant(emulator::Bug::none);
  CHECK(found, "%s, %s: nothing was reported", described(c).c_str(), name);
}

// A NaN with the bits of a word that is not there is a NaN, and nobody waits for it.
void check_absent() {
  Model model(kCases[1]);
  std::vector<float> table(size_t(model.c.vocab) * size_t(model.c.dim), 1);
  std::fill_n(table.begin() + 3 * model.c.dim, model.c.dim, __builtin_bit_cast(float, ~0u));
  model.embedding = table.data(), model.embedding_dtype = XLSTM_FLOAT32;
  Numbers number(11);
  const States begun(model.c, number);
  try {
    const Steps got = on_gpu(model, begun, {3});
    CHECK(std::all_of(got.logits.begin(), got.logits.end(), [](float y) { return y != y; }), "logits of a NaN");
  } catch (const emulator::Fault& fault) {
    CHECK(false, "a NaN of all ones: %s", fault.what());
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int seeds = count > 1 ? std::atoi(arguments[1]) : 1;
  for (int seed = 0; seed < seeds; ++seed)
    for (const std::vector<Case>* cases : {&kCases, &kRowCases})
      for (const Case& c : *cases) {
        emulator::set_seed(uint32_t(seed));
        try {
          compare(c);
        } catch (const std::exception& fault) {
          CHECK(false, "%s: %s", described(c).c_str(), fault.what());
        }
      }
  const Case& c = kCases[1];
  check_planted(c, emulator::Bug::cp_async_wait_all, "copies that are not waited for");
  check_planted(c, emulator::Bug::copies_late, "a slot that may be late");
  check_planted(c, emulator::Bug::block_barrier, "no barriers of a block");
  check_planted(c, emulator::Bug::warp_barrier, "no barriers of a warp");
  check_planted(c, emulator::Bug::shared_words, "blocks that do not wait for each other");
  const Case& rows = kRowCases[1];
  check_planted(rows, emulator::Bug::cluster_barrier, "blocks of a cluster that do not wait for each other");
  check_planted(rows, emulator::Bug::proxy_fence, "no fence before other blocks write");
  check_planted(rows, emulator::Bug::fewer_bytes, "too few bytes announced");
  check_planted(rows, emulator::Bug::shared_words, "clusters that do not wait for each other");
  check_absent();
  const Model model(c);
  Numbers number(11);
  const States begun(c, number);
  CHECK(on_gpu(model, begun, {3}).logits == on_gpu(model, begun, {3}).logits, "other bits in another schedule");
  return finish();
}
