// SPDX-License-Identifier: Apache-2.0
// The pybind11 module _native, which needs no torch: build information, the CPU, known GPUs, the catalogue, launch
// plans. The shapes of kernels on a family are in shapes.cpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <initializer_list>
#include <optional>
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
#include "mlstm/chunkwise/parallel_params.h"
#include "mlstm/cpu/plan.h"
#include "mlstm/recurrent/recurrent_plan.h"
#include "native/shapes.h"

namespace py = pybind11;
using namespace xlstm;
using py::literals::operator""_a;

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
  return py::dict("version"_a = b::version, "git_sha"_a = b::git_sha, "build_type"_a = b::build_type,
                  "compiler"_a = b::compiler, "cpu_isas"_a = split(b::cpu_isas), "gpu"_a = b::gpu,
                  "gpu_note"_a = b::gpu_note, "gpu_archs"_a = split(b::gpu_archs), "gpu_compiler"_a = b::gpu_compiler,
                  "torch_version"_a = b::torch_version, "torch_target_version"_a = b::torch_target_version);
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
  for (const DeviceFacts& f : kKnownDevices)
    all.push_back(py::dict("name"_a = f.name, "arch"_a = f.arch, "compute_units"_a = f.compute_units,
                           "wave_size"_a = f.wave_size, "lds_bytes"_a = f.lds_bytes, "memory_bytes"_a = f.memory_bytes,
                           "peak_bandwidth"_a = f.peak_bandwidth, "peak_bf16"_a = f.peak_bf16));
  return all;
}

std::vector<py::dict> catalogue() {
  std::vector<py::dict> all;
  for (const KernelEntry& k : kCatalogue)
    all.push_back(py::dict("op"_a = k.op, "device"_a = k.device, "dtypes"_a = k.dtypes, "states"_a = k.states,
                           "source"_a = k.source));
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
  return py::dict("chunk"_a = p.chunk, "segment_length"_a = p.segment_length, "segments"_a = p.segments,
                  "workers"_a = p.workers);
}

py::dict plan_attention(int64_t batch, int64_t heads_k, int64_t rows, int64_t keys, int64_t threads, int64_t block_size,
                        int64_t splits) {
  check_positive({{"batch", batch}, {"heads_k", heads_k}, {"threads", threads}});
  const AttentionShape shape{batch, heads_k, rows, keys, attention_panel(XLSTM_FLOAT32), false};
  const AttentionCpuPlan p = plan_attention_cpu(shape, block_size, splits, threads);
  return py::dict("panel"_a = shape.panel, "block_k"_a = p.block_k, "rows"_a = p.rows, "blocks"_a = p.blocks,
                  "splits"_a = p.splits, "workers"_a = p.workers);
}
py::dict plan_attention_backward(int64_t batch, int64_t heads_k, int64_t rows, int64_t threads, int64_t block_size,
                                 int64_t row_panels, int64_t parts) {
  check_positive({{"batch", batch}, {"heads_k", heads_k}, {"threads", threads}});
  const AttentionShape shape{batch, heads_k, rows, 0, attention_panel(XLSTM_FLOAT32), false};
  const AttentionBackwardCpuPlan p = plan_attention_backward_cpu(shape, block_size, row_panels, parts, threads);
  return py::dict("block_k"_a = p.block_k, "group"_a = p.group, "parts"_a = p.parts, "workers"_a = p.workers);
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

const char* schedule_name(bool hopper) { return hopper ? "hopper" : "common"; }

// The launch of products that takes a walk's place.
py::dict parallel_plan(const gpu::mlstm::WalkPlan& p) {
  return py::dict("schedule"_a = "parallel", "chunk"_a = p.chunk, "y_tile"_a = p.y_tile, "tiles"_a = p.tiles,
                  "segments"_a = p.segments, "segment_chunks"_a = p.segment_chunks, "blocks"_a = p.blocks,
                  "threads"_a = gpu::mlstm::kProductThreads, "lds_bytes"_a = gpu::mlstm::kProductLds);
}

py::dict walk_plan(const gpu::mlstm::WalkPlan& p, const gpu::Chip& chip, int element_bytes) {
  if (is_parallel(p)) return parallel_plan(p);
  const bool hopper = p.schedule == gpu::mlstm::Schedule::hopper;
  const gpu::mlstm::WalkShape shape =
      gpu::mlstm::walk_shape(chip.family, element_bytes, walk_class(p), hopper ? 32 : p.chunk);
  const gpu::mlstm::HopperRoles roles{true, !p.makes_scores, p.makes_scores};
  const int hopper_lds = hopper ? gpu::mlstm::hopper_shape(p.rows, p.tiles * p.y_tile).lds_bytes(roles) : 0;
  return py::dict("schedule"_a = schedule_name(hopper), "rows"_a = p.rows, "slices"_a = p.slices, "chunk"_a = p.chunk,
                  "y_tile"_a = p.y_tile, "tiles"_a = p.tiles, "segments"_a = p.segments,
                  "segment_chunks"_a = p.segment_chunks, "blocks"_a = p.blocks,
                  "threads"_a = hopper ? gpu::mlstm::kHopperBlockThreads : shape.threads,
                  "lds_bytes"_a = hopper ? hopper_lds : shape.lds_bytes);
}

py::dict plan_mlstm_gpu(const py::object& device, int64_t sequences, int64_t heads, int64_t length, int64_t dqk,
                        int64_t dhv, int element_bytes, int64_t walk_chunk, int64_t segments, int64_t step_columns,
                        bool panels, bool stateless, bool packed) {
  check_positive({{"sequences", sequences}, {"heads", heads}, {"length", length}, {"dqk", dqk}, {"dhv", dhv}});
  if (element_bytes != 2 && element_bytes != 4)
    throw std::invalid_argument("element_bytes: expected 2 or 4, got " + std::to_string(element_bytes));
  const gpu::Chip chip = chip_of(device);
  const gpu::mlstm::MlstmShape shape{
      sequences,  heads,    length,    dqk,   dhv, element_bytes, panels && element_bytes == 2,
      walk_chunk, segments, stateless, packed};
  const gpu::mlstm::ForwardPlan forward = gpu::mlstm::plan_forward(shape, chip);
  const gpu::mlstm::BackwardPlan backward = gpu::mlstm::plan_backward(shape, chip);
  const gpu::mlstm::RecurrentPlan step =
      gpu::mlstm::plan_recurrent(sequences * heads, dqk, dhv, true, chip, step_columns);
  const auto walk = [&](const gpu::mlstm::WalkPlan& p) { return walk_plan(p, chip, element_bytes); };
  return py::dict(
      "compute_units"_a = chip.compute_units, "forward"_a = walk(forward.walk), "dq"_a = walk(backward.dq),
      "dk"_a = walk(backward.dk), "dv"_a = walk(backward.dv), "joined"_a = forward.joined,
      "recurrent"_a = py::dict("in_registers"_a = step.in_registers, "columns"_a = step.columns, "tiles"_a = step.tiles,
                               "threads"_a = step.threads, "blocks"_a = step.blocks));
}

py::dict plan_attention_gpu(const py::object& device, int64_t batch, int64_t heads_q, int64_t heads_k, int64_t queries,
                            int64_t keys, int64_t dqk, int64_t dv, int element_bytes, bool has_score_mod,
                            int64_t block_size, int64_t splits, bool panels) {
  check_positive({{"batch", batch}, {"heads_q", heads_q}, {"heads_k", heads_k}, {"dqk", dqk}, {"dv", dv}});
  const gpu::attention::AttentionForwardPlan p = gpu::attention::plan_attention_forward(
      {batch, heads_q, heads_k, queries, keys, dqk, dv, element_bytes, has_score_mod, panels}, block_size, splits,
      chip_of(device));
  const gpu::attention::HopperAttentionShape smem =
      gpu::attention::forward_hopper_shape(gpu::attention::hopper_features(dqk, dv));
  const int64_t blocks = p.hopper ? ceil_div(queries, smem.owned_rows()) : p.blocks;
  return py::dict("schedule"_a = schedule_name(p.hopper), "head_dims"_a = py::make_tuple(p.head.dqk, p.head.dv),
                  "full"_a = p.has_score_mod, "keys"_a = p.hopper ? smem.tile : p.shape.keys,
                  "rows"_a = p.hopper ? smem.owned_rows() : p.shape.rows,
                  "threads"_a = p.hopper ? gpu::attention::kHopperAttentionThreads : p.shape.threads,
                  "lds_bytes"_a = p.hopper ? smem.lds_bytes() : p.shape.lds_bytes, "blocks"_a = blocks,
                  "splits"_a = p.splits, "grid"_a = p.grid);
}
// The plan of attention's backward pass: the blocks that own keys, for dk and dv, and those that own queries, for dq.
py::dict plan_attention_backward_gpu(const py::object& device, int64_t batch, int64_t heads_q, int64_t heads_k,
                                     int64_t queries, int64_t keys, int64_t dqk, int64_t dv, int element_bytes,
                                     bool has_score_mod, int64_t parts, bool common_schedule, bool panels,
                                     bool deterministic, bool even) {
  check_positive({{"batch", batch}, {"heads_q", heads_q}, {"heads_k", heads_k}, {"dqk", dqk}, {"dv", dv}});
  const gpu::attention::AttentionBackwardPlan p = gpu::attention::plan_attention_backward(
      {batch, heads_q, heads_k, queries, keys, 0, dqk, dv, false, element_bytes, has_score_mod, panels, parts,
       common_schedule, panels, deterministic, even},
      chip_of(device));
  const auto side = [&](bool of_keys) {
    const gpu::attention::HopperAttentionShape smem =
        gpu::attention::backward_hopper_shape(gpu::attention::hopper_features(dqk, dv), of_keys);
    const gpu::attention::BackwardShape& shape = of_keys ? p.of_keys : p.of_queries;
    const int owned = p.hopper ? smem.owned_rows() : shape.owned;
    return py::dict("owned"_a = owned, "tile"_a = p.hopper ? smem.tile : shape.tile,
                    "threads"_a = p.hopper ? gpu::attention::kHopperAttentionThreads : shape.threads,
                    "lds_bytes"_a = p.hopper ? smem.lds_bytes() : shape.lds_bytes,
                    "grid"_a = batch * (!of_keys   ? heads_q * ceil_div(queries, owned)
                                        : p.hopper ? heads_k * ceil_div(keys, owned)
                                                   : heads_k * p.walks()));
  };
  py::dict plan("schedule"_a = p.one_pass ? "one pass" : schedule_name(p.hopper),
                "head_dims"_a = py::make_tuple(p.dqk, p.dv), "full"_a = p.has_score_mod, "parts"_a = p.parts,
                "whole_blocks"_a = p.whole_k, "of_keys"_a = side(true));
  if (!p.one_pass) plan["of_queries"] = side(false);
  return plan;
}
// The plan of attention for few queries, whose kernel has waves along the keys.
py::dict plan_decode_gpu(const py::object& device, int64_t batch, int64_t heads_q, int64_t heads_k, int64_t queries,
                         int64_t keys, int64_t dqk, int64_t dv, int element_bytes, int64_t splits) {
  check_positive({{"batch", batch}, {"heads_q", heads_q}, {"heads_k", heads_k}, {"dqk", dqk}, {"dv", dv}});
  const gpu::attention::AttentionCall call{batch, heads_q, heads_k, queries, keys, dqk, dv, element_bytes, false};
  const gpu::Chip chip = chip_of(device);
  if (!gpu::attention::has_few_rows(call, chip)) return py::dict("few_rows"_a = false);
  const gpu::attention::DecodePlan p = gpu::attention::plan_decode(call, splits, chip);
  return py::dict("few_rows"_a = true, "head_dims"_a = py::make_tuple(p.head.dqk, p.head.dv),
                  "threads"_a = p.shape.threads, "lds_bytes"_a = p.shape.lds_bytes, "blocks"_a = p.blocks,
                  "splits"_a = p.splits, "grid"_a = p.grid);
}
// The plan of MLA decode. rows: of a key head. compute_units, arch: of the present device, or of a known one.
// allow_hopper: whether Hopper's schedule may be chosen. element_bytes: q's.
py::dict plan_mla_gpu(const std::string& arch, int32_t compute_units, int32_t lds_bytes, int64_t batch, int64_t heads_k,
                      int64_t rows, int64_t keys, int64_t dqk, int64_t splits, bool allow_hopper, int element_bytes) {
  check_positive({{"compute_units", compute_units}, {"batch", batch}, {"heads_k", heads_k}, {"rows", rows}});
  gpu::Chip chip = gpu::chip_of({"", arch.c_str(), compute_units, 0, lds_bytes, 0, 0, 0});
  chip.hopper = chip.hopper && allow_hopper;
  const gpu::attention::MlaPlan p =
      gpu::attention::plan_mla({batch, rows * heads_k, heads_k, 1, keys, dqk, 512, element_bytes, false}, splits, chip);
  return py::dict("schedule"_a = schedule_name(p.hopper), "rows"_a = p.rows, "keys"_a = p.shape.keys,
                  "threads"_a = p.shape.threads, "lds_bytes"_a = p.shape.lds_bytes, "blocks"_a = p.blocks,
                  "splits"_a = p.splits, "grid"_a = p.grid);
}
// The floats of 8 bits that MLA's kernels for these head dims multiply on a chip, by torch's name, or nothing.
std::string mla_float8_products(const std::string& arch, int64_t dqk, int64_t dv) {
  const std::optional<xlstm_dtype> products = gpu::float8_products_of(arch);
  if (!products || !gpu::attention::has_mla_dims(dqk, dv)) return "";
  return *products == XLSTM_FLOAT8_E4M3FN ? "float8_e4m3fn" : "float8_e4m3fnuz";
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
  m.def("cpu_features", cpu_features, "Instruction set -> whether this machine supports it.");
  m.def("cpu_isa", [] { return isa_name(cpu_isa()); }, "The instruction set that the CPU kernels use.");
  m.def("known_devices", known_devices, "The GPUs that plans know by name.");
  m.def("catalogue", catalogue, "The kernels in the op library.");
  m.def("plan_mlstm_cpu", plan_mlstm, "sequences"_a, "heads"_a, "longest"_a, "chunk_size"_a, "threads"_a,
        "segments"_a = 0, "The split of the chunkwise mLSTM into tasks on a CPU.");
  m.def(
      "plan_attention_cpu", plan_attention, "batch"_a, "heads_k"_a, "rows"_a, "keys"_a, "threads"_a, "block_size"_a = 0,
      "splits"_a = 0,
      "The split of attention into tasks on a CPU; rows: queries times the query heads of a key head. 0 lets the plan "
      "choose.");
  m.def("plan_attention_backward_cpu", plan_attention_backward, "batch"_a, "heads_k"_a, "rows"_a, "threads"_a,
        "block_size"_a = 0, "row_panels"_a = 0, "parts"_a = 0,
        "The split of attention's backward pass into tasks on a CPU. It does not depend on the number of keys.");
  m.def("plan_mlstm_gpu", plan_mlstm_gpu, "device"_a, "sequences"_a, "heads"_a, "length"_a, "dqk"_a, "dhv"_a,
        "element_bytes"_a, "walk_chunk"_a = 0, "segments"_a = 0, "step_columns"_a = 0, "panels"_a = true,
        "stateless"_a = false, "packed"_a = false,
        "The plan of the mLSTM on a GPU, which is the name of one of known_devices() or (arch, compute_units, "
        "lds_bytes): forward, the three walks of backward, sequence and step. panels: tensors of two bytes an element "
        "are bfloat16 and have a layout that TMA accepts. stateless: without initial or last states. packed: the "
        "sequences are those of one row of this length; joined says whether it is walked as one sequence.");
  m.def("plan_attention_gpu", plan_attention_gpu, "device"_a, "batch"_a, "heads_q"_a, "heads_k"_a, "queries"_a,
        "keys"_a, "dqk"_a, "dv"_a, "element_bytes"_a, "has_score_mod"_a = false, "block_size"_a = 0, "splits"_a = 0,
        "panels"_a = false,
        "The plan of attention's forward pass on such a GPU; has_score_mod: with softcap, ALiBi or dropout; panels: "
        "tensors "
        "have a layout that TMA accepts.");
  m.def("plan_attention_backward_gpu", plan_attention_backward_gpu, "device"_a, "batch"_a, "heads_q"_a, "heads_k"_a,
        "queries"_a, "keys"_a, "dqk"_a, "dv"_a, "element_bytes"_a, "has_score_mod"_a = false, "parts"_a = 0,
        "common_schedule"_a = false, "panels"_a = false, "deterministic"_a = false, "even"_a = false,
        "The plan of attention's backward pass on such a GPU; a negative scale is no modified score. even: every query "
        "of "
        "every sequence sees every key.");
  m.def("plan_decode_gpu", plan_decode_gpu, "device"_a, "batch"_a, "heads_q"_a, "heads_k"_a, "queries"_a, "keys"_a,
        "dqk"_a, "dv"_a, "element_bytes"_a, "splits"_a = 0,
        "The plan of attention for few rows of a key head; few_rows: whether the rows are few enough for that kernel.");
  m.def("plan_mla_gpu", plan_mla_gpu, "arch"_a, "compute_units"_a, "lds_bytes"_a, "batch"_a, "heads_k"_a, "rows"_a,
        "keys"_a, "dqk"_a = 576, "splits"_a = 0, "own_schedule"_a = true, "element_bytes"_a = 2,
        "The plan of MLA decode on a GPU; rows: queries of all heads of a key head.");
  m.def("mla_float8_products", mla_float8_products, "arch"_a, "dqk"_a, "dv"_a,
        "The floats of 8 bits that MLA's kernels multiply on a chip, by torch's name, or nothing.");
  m.def("attention_places", attention_coords, "heads"_a, "splits"_a, "row_blocks"_a,
        "(key head, part of the keys, block of rows) of each block of a forward call on a GPU, in launch order.");
  add_shapes(m);
}
