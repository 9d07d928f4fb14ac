// SPDX-License-Identifier: Apache-2.0
// The pybind11 module _native, which needs no torch: build information, the CPU, known GPUs, the catalogue, launch
// plans. The shapes of kernels on a family are in shapes.cpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "api/attention.h"
#include "api/catalogue.h"
#include "arch/cpu/isa.h"
#include "arch/devices.h"
#include "attention/backward/backward_plan.h"
#include "attention/cpu/plan.h"
#include "attention/forward/forward_plan.h"
#include "attention/gpu/hopper_shape.h"
#include "attention/mla/mla_plan.h"
#include "build_info.h"
#include "mlstm/chunkwise/chunkwise_plan.h"
#include "mlstm/cpu/plan.h"
#include "mlstm/recurrent/recurrent_plan.h"
#include "native/shapes.h"

namespace py = pybind11;
using namespace xlstm;

namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t from = 0; from < list.size();) {
    const size_t to = std::min(list.find(';', from), list.size());
    if (to > from) parts.push_back(list.substr(from, to - from));
    from = to + 1;
  }
  return parts;
}

py::dict build_facts() {
  namespace b = build_info;
  py::dict d;
  d["version"] = b::version;
  d["git_sha"] = b::git_sha;
  d["build_type"] = b::build_type;
  d["compiler"] = b::compiler;
  d["cpu_isas"] = split(b::cpu_isas);
  d["gpu"] = b::gpu;
  d["gpu_note"] = b::gpu_note;
  d["gpu_archs"] = split(b::gpu_archs);
  d["gpu_compiler"] = b::gpu_compiler;
  d["torch_version"] = b::torch_version;
  d["torch_target_version"] = b::torch_target_version;
  return d;
}

py::dict cpu_features() {
  py::dict d;
#define XLSTM_RUNS(name) d[#name] = isa_is_supported(Isa::name);
  XLSTM_FOR_EACH_ISA(XLSTM_RUNS)
#undef XLSTM_RUNS
  return d;
}

std::vector<py::dict> known_devices() {
  std::vector<py::dict> all;
  for (const DeviceFacts& f : kKnownDevices) {
    py::dict d;
    d["name"] = f.name;
    d["arch"] = f.arch;
    d["compute_units"] = f.compute_units;
    d["wave_size"] = f.wave_size;
    d["lds_bytes"] = f.lds_bytes;
    d["memory_bytes"] = f.memory_bytes;
    d["peak_bandwidth"] = f.peak_bandwidth;
    d["peak_bf16"] = f.peak_bf16;
    all.push_back(d);
  }
  return all;
}

std::vector<py::dict> catalogue() {
  std::vector<py::dict> all;
  for (const KernelEntry& k : kCatalogue) {
    py::dict d;
    d["op"] = k.op;
    d["device"] = k.device;
    d["dtypes"] = k.dtypes;
    d["states"] = k.states;
    d["source"] = k.source;
    all.push_back(d);
  }
  return all;
}

void check_positive(std::initializer_list<std::pair<const char*, int64_t>> values) {
  for (const auto& [name, value] : values)
    if (value < 1) throw std::invalid_argument(std::string(name) + ": expected >= 1, got " + std::to_string(value));
}

py::dict plan_mlstm(int64_t sequences, int64_t heads, int64_t longest, int64_t chunk_size, int64_t threads,
                    int64_t segments) {
  check_positive({{"sequences", sequences},
                  {"heads", heads},
                  {"longest", longest},
                  {"chunk_size", chunk_size},
                  {"threads", threads}});
  const MlstmCpuPlan p = plan_mlstm_cpu(sequences, heads, longest, chunk_size, threads, segments);
  py::dict d;
  d["chunk"] = p.chunk;
  d["segment_length"] = p.segment_length;
  d["segments"] = p.segments;
  d["workers"] = p.workers;
  return d;
}

py::dict plan_attention(int64_t batch, int64_t heads_k, int64_t rows, int64_t keys, int64_t threads, int64_t block_size,
                        int64_t splits) {
  check_positive({{"batch", batch}, {"heads_k", heads_k}, {"threads", threads}});
  const AttentionShape shape{batch, heads_k, rows, keys, attention_panel(XLSTM_FLOAT32), false};
  const AttentionCpuPlan p = plan_attention_cpu(shape, block_size, splits, threads);
  py::dict d;
  d["panel"] = shape.panel;
  d["block_k"] = p.block_k;
  d["rows"] = p.rows;
  d["blocks"] = p.blocks;
  d["splits"] = p.splits;
  d["workers"] = p.workers;
  return d;
}
py::dict plan_attention_backward(int64_t batch, int64_t heads_k, int64_t rows, int64_t threads, int64_t block_size,
                                 int64_t row_panels, int64_t parts) {
  check_positive({{"batch", batch}, {"heads_k", heads_k}, {"threads", threads}});
  const AttentionShape shape{batch, heads_k, rows, 0, attention_panel(XLSTM_FLOAT32), false};
  const AttentionBackwardCpuPlan p = plan_attention_backward_cpu(shape, block_size, row_panels, parts, threads);
  py::dict d;
  d["block_k"] = p.block_k;
  d["group"] = p.group;
  d["parts"] = p.parts;
  d["workers"] = p.workers;
  return d;
}

// ---- GPU plans, for known devices

const DeviceFacts& device_of(const std::string& name) {
  std::string names;
  for (const DeviceFacts& f : kKnownDevices) {
    if (name == f.name) return f;
    names += names.empty() ? f.name : std::string(", ") + f.name;
  }
  throw std::invalid_argument("device: expected one of " + names + ", got " + name);
}

// The name of one of known_devices(), or (arch, compute units, bytes of LDS) of any GPU.
gpu::Chip chip_of(const py::object& device) {
  if (py::isinstance<py::str>(device)) return gpu::chip_of(device_of(device.cast<std::string>()));
  try {
    const auto [arch, compute_units, lds_bytes] = device.cast<std::tuple<std::string, int32_t, int32_t>>();
    check_positive({{"compute_units", compute_units}, {"lds_bytes", lds_bytes}});
    return gpu::chip_of({"", arch.c_str(), compute_units, 0, lds_bytes, 0, 0, 0});
  } catch (const py::cast_error&) {
    throw std::invalid_argument("device: expected a name, or (arch, compute_units, lds_bytes), got " +
                                py::repr(device).cast<std::string>());
  }
}

py::dict walk_plan(const gpu::mlstm::WalkPlan& p, const gpu::Chip& chip, int element_bytes) {
  const bool hopper = p.schedule == gpu::mlstm::Schedule::hopper;
  const gpu::mlstm::WalkShape shape = gpu::mlstm::walk_shape(chip.family, element_bytes, p.rows, hopper ? 32 : p.chunk);
  py::dict d;
  d["schedule"] = hopper ? "hopper" : "common";
  d["rows"] = p.rows;
  d["slices"] = p.slices;
  d["chunk"] = p.chunk;
  d["y_tile"] = p.y_tile;
  d["tiles"] = p.tiles;
  d["segments"] = p.segments;
  d["segment_chunks"] = p.segment_chunks;
  d["blocks"] = p.blocks;
  const gpu::mlstm::HopperOutput output =
      p.makes_scores ? gpu::mlstm::HopperOutput::h : gpu::mlstm::HopperOutput::dq_dk;
  d["threads"] = hopper ? gpu::mlstm::kHopperBlockThreads : shape.threads;
  d["lds_bytes"] = hopper ? gpu::mlstm::hopper_shape(p.rows, p.tiles * p.y_tile).lds_bytes(output) : shape.lds_bytes;
  return d;
}

py::dict plan_mlstm_gpu(const py::object& device, int64_t sequences, int64_t heads, int64_t length, int64_t dqk,
                        int64_t dhv, int element_bytes, int64_t walk_chunk, int64_t segments, int64_t step_columns,
                        bool packed, bool panels) {
  check_positive({{"sequences", sequences}, {"heads", heads}, {"length", length}, {"dqk", dqk}, {"dhv", dhv}});
  if (element_bytes != 2 && element_bytes != 4)
    throw std::invalid_argument("element_bytes: expected 2 or 4, got " + std::to_string(element_bytes));
  const gpu::Chip chip = chip_of(device);
  const gpu::mlstm::MlstmShape shape{
      sequences, heads, length, dqk, dhv, packed, element_bytes, panels && element_bytes == 2, walk_chunk, segments};
  const gpu::mlstm::ForwardPlan forward = gpu::mlstm::plan_forward(shape, chip);
  const gpu::mlstm::BackwardPlan backward = gpu::mlstm::plan_backward(shape, chip);
  const gpu::mlstm::RecurrentPlan step =
      gpu::mlstm::plan_recurrent(sequences * heads, dqk, dhv, true, chip, step_columns);
  py::dict d, recurrent;
  d["compute_units"] = chip.compute_units;
  d["forward"] = walk_plan(forward.walk, chip, element_bytes);
  d["dq"] = walk_plan(backward.dq, chip, element_bytes);
  d["dk"] = walk_plan(backward.dk, chip, element_bytes);
  d["dv"] = walk_plan(backward.dv, chip, element_bytes);
  recurrent["in_registers"] = step.in_registers;
  recurrent["columns"] = step.columns;
  recurrent["tiles"] = step.tiles;
  recurrent["threads"] = step.threads;
  recurrent["blocks"] = step.blocks;
  d["recurrent"] = recurrent;
  return d;
}

py::dict plan_attention_gpu(const py::object& device, int64_t batch, int64_t heads_q, int64_t heads_k, int64_t queries,
                            int64_t keys, int64_t dqk, int64_t dv, int element_bytes, bool has_score_mod,
                            int64_t block_size, int64_t splits, bool panels) {
  check_positive({{"batch", batch}, {"heads_q", heads_q}, {"heads_k", heads_k}, {"dqk", dqk}, {"dv", dv}});
  const gpu::attention::AttentionForwardPlan p = gpu::attention::plan_attention_forward(
      {batch, heads_q, heads_k, queries, keys, dqk, dv, element_bytes, has_score_mod, panels}, block_size, splits,
      chip_of(device));
  py::dict d;
  d["schedule"] = p.hopper ? "hopper" : "common";
  d["head_dims"] = py::make_tuple(p.head.dqk, p.head.dv);
  d["full"] = p.has_score_mod;
  const gpu::attention::HopperAttentionShape smem = gpu::attention::forward_hopper_shape(p.head.dqk);
  const int64_t blocks = (queries + gpu::attention::kHopperOwned - 1) / gpu::attention::kHopperOwned;
  d["keys"] = p.hopper ? smem.tile : p.shape.keys;
  d["rows"] = p.hopper ? gpu::attention::kHopperOwned : p.shape.rows;
  d["threads"] = p.hopper ? gpu::attention::kHopperAttentionThreads : p.shape.threads;
  d["lds_bytes"] = p.hopper ? smem.lds_bytes() : p.shape.lds_bytes;
  d["blocks"] = p.hopper ? blocks : p.blocks;
  d["splits"] = p.splits;
  d["grid"] = p.hopper ? batch * heads_q * blocks : p.grid;
  return d;
}
// The plan of attention's backward pass: the blocks that own keys, for dk and dv, and those that own queries, for dq.
py::dict plan_attention_backward_gpu(const py::object& device, int64_t batch, int64_t heads_q, int64_t heads_k,
                                     int64_t queries, int64_t keys, int64_t dqk, int64_t dv, int element_bytes,
                                     bool has_score_mod, int64_t parts, bool common_schedule, bool panels) {
  check_positive({{"batch", batch}, {"heads_q", heads_q}, {"heads_k", heads_k}, {"dqk", dqk}, {"dv", dv}});
  const gpu::attention::AttentionBackwardPlan p =
      gpu::attention::plan_attention_backward({batch, heads_q, heads_k, queries, keys, 0, dqk, dv, false, element_bytes,
                                               has_score_mod, panels, parts, common_schedule},
                                              chip_of(device));
  const auto side = [&](bool of_keys) {
    const gpu::attention::HopperAttentionShape smem = gpu::attention::backward_hopper_shape(p.dqk, of_keys);
    const gpu::attention::BackwardShape& shape = of_keys ? p.of_keys : p.of_queries;
    const int owned = p.hopper ? gpu::attention::kHopperOwned : shape.owned;
    py::dict d;
    d["owned"] = owned;
    d["tile"] = p.hopper ? smem.tile : shape.tile;
    d["threads"] = p.hopper ? gpu::attention::kHopperAttentionThreads : shape.threads;
    d["lds_bytes"] = p.hopper ? smem.lds_bytes() : shape.lds_bytes;
    d["grid"] = batch * (of_keys ? heads_k * p.parts : heads_q) * ceil_div(of_keys ? keys : queries, owned);
    return d;
  };
  py::dict d;
  d["schedule"] = p.hopper ? "hopper" : "common";
  d["head_dims"] = py::make_tuple(p.dqk, p.dv);
  d["full"] = p.has_score_mod;
  d["parts"] = p.parts;
  d["of_keys"] = side(true);
  d["of_queries"] = side(false);
  return d;
}
// The plan of attention for few queries, whose kernel has waves along the keys.
py::dict plan_decode_gpu(const py::object& device, int64_t batch, int64_t heads_q, int64_t heads_k, int64_t queries,
                         int64_t keys, int64_t dqk, int64_t dv, int element_bytes, int64_t splits) {
  check_positive({{"batch", batch}, {"heads_q", heads_q}, {"heads_k", heads_k}, {"dqk", dqk}, {"dv", dv}});
  const gpu::attention::AttentionCall call{batch, heads_q, heads_k, queries, keys, dqk, dv, element_bytes, false};
  py::dict d;
  const gpu::Chip chip = chip_of(device);
  d["few_rows"] = gpu::attention::has_few_rows(call, chip);
  if (!gpu::attention::has_few_rows(call, chip)) return d;
  const gpu::attention::DecodePlan p = gpu::attention::plan_decode(call, splits, chip);
  d["head_dims"] = py::make_tuple(p.head.dqk, p.head.dv);
  d["threads"] = p.shape.threads;
  d["lds_bytes"] = p.shape.lds_bytes;
  d["blocks"] = p.blocks;
  d["splits"] = p.splits;
  d["grid"] = p.grid;
  return d;
}
// The plan of MLA decode. rows: of a key head. compute_units, arch: of the present device, or of a known one.
// allow_hopper: whether Hopper's schedule may be chosen.
py::dict plan_mla_gpu(const std::string& arch, int32_t compute_units, int32_t lds_bytes, int64_t batch, int64_t heads_k,
                      int64_t rows, int64_t keys, int64_t dqk, int64_t splits, bool allow_hopper) {
  check_positive({{"compute_units", compute_units}, {"batch", batch}, {"heads_k", heads_k}, {"rows", rows}});
  gpu::Chip chip = gpu::chip_of({"", arch.c_str(), compute_units, 0, lds_bytes, 0, 0, 0});
  chip.hopper = chip.hopper && allow_hopper;
  const gpu::attention::MlaPlan p =
      gpu::attention::plan_mla({batch, rows * heads_k, heads_k, 1, keys, dqk, 512, 2, false}, splits, chip);
  py::dict d;
  d["schedule"] = p.hopper ? "hopper" : "common";
  d["rows"] = p.rows;
  d["keys"] = p.shape.keys;
  d["threads"] = p.shape.threads;
  d["lds_bytes"] = p.shape.lds_bytes;
  d["blocks"] = p.blocks;
  d["splits"] = p.splits;
  d["grid"] = p.grid;
  return d;
}
// The coordinates of each block of a forward call: key head, part of the keys, block of rows.
py::list attention_coords(int64_t heads, int64_t splits, int64_t row_blocks) {
  py::list all;
  for (int64_t block = 0; block < heads * splits * row_blocks; ++block) {
    const gpu::attention::ForwardCoord at = gpu::attention::forward_coord(block, heads, splits, row_blocks);
    all.append(py::make_tuple(at.head, at.split, at.rows));
  }
  return all;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "Facts about this build and machine, the kernel catalogue and launch plans.";
  m.def("build_facts", build_facts, "Version, compiler, instruction sets, GPU languages and archs of this build.");
  m.def("cpu_features", cpu_features, "Instruction set -> whether it runs here.");
  m.def("cpu_isa", [] { return isa_name(cpu_isa()); }, "The instruction set that the CPU kernels use.");
  m.def("known_devices", known_devices, "GPUs that plans are made for.");
  m.def("catalogue", catalogue, "The kernels in the op library.");
  m.def("plan_mlstm_cpu", plan_mlstm, py::arg("sequences"), py::arg("heads"), py::arg("longest"), py::arg("chunk_size"),
        py::arg("threads"), py::arg("segments") = 0, "How the chunkwise mLSTM is cut into tasks on a CPU.");
  m.def("plan_attention_cpu", plan_attention, py::arg("batch"), py::arg("heads_k"), py::arg("rows"), py::arg("keys"),
        py::arg("threads"), py::arg("block_size") = 0, py::arg("splits") = 0,
        "How attention is cut into tasks on a CPU; rows: queries times the query heads of a key head. 0: the plan's "
        "own.");
  m.def("plan_attention_backward_cpu", plan_attention_backward, py::arg("batch"), py::arg("heads_k"), py::arg("rows"),
        py::arg("threads"), py::arg("block_size") = 0, py::arg("row_panels") = 0, py::arg("parts") = 0,
        "The same for the backward pass, which no number of keys changes.");
  m.def("plan_mlstm_gpu", plan_mlstm_gpu, py::arg("device"), py::arg("sequences"), py::arg("heads"), py::arg("length"),
        py::arg("dqk"), py::arg("dhv"), py::arg("element_bytes"), py::arg("walk_chunk") = 0, py::arg("segments") = 0,
        py::arg("step_columns") = 0, py::arg("packed") = false, py::arg("panels") = true,
        "How the mLSTM is cut up on a GPU, one of known_devices() by its name or any by (arch, compute_units, "
        "lds_bytes): forward, the three walks of backward, sequence and step. panels: tensors of two bytes an element "
        "are bfloat16, and lie so that Hopper's bulk copies take them.");
  m.def(
      "plan_attention_gpu", plan_attention_gpu, py::arg("device"), py::arg("batch"), py::arg("heads_q"),
      py::arg("heads_k"), py::arg("queries"), py::arg("keys"), py::arg("dqk"), py::arg("dv"), py::arg("element_bytes"),
      py::arg("bent") = false, py::arg("block_size") = 0, py::arg("splits") = 0, py::arg("panels") = false,
      "How attention's forward pass is cut up on such a GPU; bent: with softcap, ALiBi or dropout; panels: tensors lie "
      "so that Hopper's bulk copies take them.");
  m.def("plan_attention_backward_gpu", plan_attention_backward_gpu, py::arg("device"), py::arg("batch"),
        py::arg("heads_q"), py::arg("heads_k"), py::arg("queries"), py::arg("keys"), py::arg("dqk"), py::arg("dv"),
        py::arg("element_bytes"), py::arg("bent") = false, py::arg("parts") = 0, py::arg("common_schedule") = false,
        py::arg("panels") = false, "The same of its backward pass, in which negative scales are not bent.");
  m.def("plan_decode_gpu", plan_decode_gpu, py::arg("device"), py::arg("batch"), py::arg("heads_q"), py::arg("heads_k"),
        py::arg("queries"), py::arg("keys"), py::arg("dqk"), py::arg("dv"), py::arg("element_bytes"),
        py::arg("splits") = 0, "The same for few rows of a key head, where few_rows says that they are few.");
  m.def("plan_mla_gpu", plan_mla_gpu, py::arg("arch"), py::arg("compute_units"), py::arg("lds_bytes"), py::arg("batch"),
        py::arg("heads_k"), py::arg("rows"), py::arg("keys"), py::arg("dqk") = 576, py::arg("splits") = 0,
        py::arg("own_schedule") = true,
        "How MLA decoding is cut up on a GPU; rows: queries of all heads of a key head.");
  m.def("attention_places", attention_coords, py::arg("heads"), py::arg("splits"), py::arg("row_blocks"),
        "(key head, part of the keys, block of rows) of each block of a forward call on a GPU, in their order.");
  add_shapes(m);
}
