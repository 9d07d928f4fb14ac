// SPDX-License-Identifier: Apache-2.0
// The pybind11 module _native: what needs no torch. Build facts, the CPU, known GPUs, the catalogue, launch plans.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "api/catalogue.h"
#include "arch/devices.h"
#include "arch/isa.h"
#include "build_info.h"
#include "mlstm/plan.h"

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
#define XLSTM_RUNS(name) d[#name] = isa_runs_here(Isa::name);
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

py::dict plan_mlstm(int64_t sequences, int64_t heads, int64_t longest, int64_t chunk_size, int64_t threads) {
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"sequences", sequences},
                                    {"heads", heads},
                                    {"longest", longest},
                                    {"chunk_size", chunk_size},
                                    {"threads", threads}})
    if (value < 1) throw std::invalid_argument(std::string(name) + ": expected >= 1, got " + std::to_string(value));
  const MlstmCpuPlan p = plan_mlstm_cpu(sequences, heads, longest, chunk_size, threads);
  py::dict d;
  d["chunk"] = p.chunk;
  d["segment_length"] = p.segment_length;
  d["segments"] = p.segments;
  d["workers"] = p.workers;
  return d;
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
        py::arg("threads"), "How the chunkwise mLSTM is cut into tasks on a CPU.");
}
