// SPDX-License-Identifier: Apache-2.0
// What kernels are and what they did, as JSON.
#include "gfx942_control.h"
#include "json.h"
#include "operations.h"
#include "runtime.h"

namespace gfx942::hip {
namespace {

constexpr const char* kUnitNames[kUnits] = {"scalar", "scalar_memory", "vector", "transcendental", "matrix",
                                            "lds",    "memory",        "branch", "barrier",        "wait"};

void describe(Json& json, const Code& code) {
  json.member("name", std::string_view(code.name)).member("vgprs", uint64_t(code.vgprs));
  json.member("agprs", uint64_t(code.agprs)).member("sgprs", uint64_t(code.sgprs));
  json.member("vgpr_spills", uint64_t(code.vgpr_spills)).member("sgpr_spills", uint64_t(code.sgpr_spills));
  json.member("lds_bytes", uint64_t(code.lds_bytes)).member("scratch_bytes", uint64_t(code.scratch_bytes));
  json.member("most_threads", uint64_t(code.most_threads)).member("kernarg_bytes", uint64_t(code.kernarg_bytes));
  json.member("instructions_in_code", uint64_t(code.instructions.size()));
  json.key("arguments").open('[');
  for (const Argument& a : code.arguments)
    json.open('{')
        .member("kind", std::string_view(a.kind))
        .member("offset", uint64_t(a.offset))
        .member("size", uint64_t(a.size))
        .close('}');
  json.close(']');
}

void count_instructions(Json& json, const Code& code, const Tally& t) {
  for (const Instruction& i : code.instructions) {
    const auto of = [&](const std::vector<uint64_t>& counter) {
      return i.index < counter.size() ? counter[i.index] : 0;
    };
    json.open('{').member("offset", i.address - code.base).member("mnemonic", std::string_view(i.mnemonic));
    json.member("text", std::string_view(i.text)).member("unit", std::string_view(kUnitNames[int(i.operation->unit)]));
    json.member("cycles", uint64_t(i.operation->cycles))
        .member("executed", of(t.executed))
        .member("lanes", of(t.lanes));
    json.member("lds_cycles", of(t.cycles)).member("lds_ideal_cycles", of(t.ideal));
    json.member("bytes", of(t.bytes)).member("lines", of(t.lines)).close('}');
  }
}

void count(Json& json, const Code& code, const Record& record, bool with_instructions) {
  const Tally& t = record.tally;
  json.member("launches", t.launches).member("workgroups", t.workgroups).member("waves", t.waves);
  json.key("shapes").open('[');
  for (const auto& [shape, times] : record.launches)
    json.open('{')
        .key("grid")
        .list(shape.grid)
        .key("block")
        .list(shape.block)
        .member("dynamic_lds", uint64_t(shape.dynamic_lds))
        .member("launches", times)
        .close('}');
  json.close(']').key("instructions").open('[');
  if (with_instructions) count_instructions(json, code, t);
  json.close(']');
}

}  // namespace
}  // namespace gfx942::hip

using namespace gfx942;
using namespace gfx942::hip;

extern "C" {

void gfx942_set_sample(uint32_t every) {
  const std::lock_guard guard(runtime().lock);
  runtime().options.sample = every ? every : 1;
}

void gfx942_reset_counters() {
  const std::lock_guard guard(runtime().lock);
  runtime().records.clear();
}

void gfx942_set_schedule(uint64_t seed) {
  const std::lock_guard guard(runtime().lock);
  runtime().schedule = seed;
}

uint64_t gfx942_schedule() {
  const std::lock_guard guard(runtime().lock);
  return runtime().schedule;
}

void gfx942_set_recording(uint64_t wave_instructions) {
  const std::lock_guard guard(runtime().lock);
  runtime().recorded_instructions = wave_instructions;
}

void gfx942_forget_recordings() {
  const std::lock_guard guard(runtime().lock);
  runtime().recorded.clear();
}

// For tests and tools that read the words themselves: of launch number `launch`, of workgroups in order, of waves.
const char* gfx942_recordings_json() {
  static std::string buffer;
  return kept(buffer, [] {
    Json json;
    json.open('[');
    for (const auto& [function, launch] : runtime().recorded) {
      json.open('{').member("kernel", std::string_view(launch.code->name));
      json.key("grid").list(launch.grid).key("block").list(launch.block).key("groups").open('[');
      for (const auto& [number, waves] : launch.groups) {
        json.open('{').member("number", number).key("waves").open('[');
        for (const auto& words : waves) json.list(words);
        json.close(']').close('}');
      }
      json.close(']').close('}');
    }
    json.close(']');
    return json.text();
  });
}

const char* gfx942_counters_json(const char* part, int with_instructions) {
  static std::string buffer;
  return kept(buffer, [&] {
    const std::string searched = &given(part, "the name's part");
    Json json;
    json.open('[');
    for (const auto& [function, record] : runtime().records) {
      if (function->code().name.find(searched) == std::string::npos) continue;
      json.open('{');
      describe(json, function->code());
      count(json, function->code(), record, with_instructions != 0);
      json.close('}');
    }
    json.close(']');
    return json.text();
  });
}

const char* gfx942_checks_json() {
  static std::string buffer;
  return kept(buffer, [] {
    Json json;
    json.open('[');
    for (int k = 0; k < kChecks; ++k) {
      const KnownCheck& c = known(Check(k));
      json.open('{').member("name", std::string_view(c.name)).member("finds", std::string_view(c.finds));
      json.member("otherwise", std::string_view(c.otherwise));
      json.member("mode", std::string_view(checks().warns(Check(k)) ? "warn" : "error")).close('}');
    }
    json.close(']');
    return json.text();
  });
}

int gfx942_set_check(const char* name, const char* mode) {
  return call([&] {
    try {
      checks().set(&given(name, "the check"), &given(mode, "the mode"));
    } catch (const Fault& e) {
      throw Error(hipErrorInvalidValue, e.what());
    }
  });
}

const char* gfx942_warnings_json() {
  static std::string buffer;
  return kept(buffer, [] {
    Json json;
    json.open('[');
    checks().for_each_warning([&](const Warning& w) {
      json.open('{').member("check", std::string_view(known(w.check).name));
      json.member("times", w.times).member("text", std::string_view(w.text)).close('}');
    });
    json.close(']');
    return json.text();
  });
}

void gfx942_reset_warnings() { checks().forget(); }

const char* gfx942_device_json() {
  static std::string buffer;
  return kept(buffer, [] {
    const hipDeviceProp_t& p = device_properties();
    Json json;
    json.open('{').member("name", std::string_view(p.name)).member("arch", std::string_view(p.gcnArchName));
    json.member("compute_units", uint64_t(p.multiProcessorCount)).member("wave_size", uint64_t(p.warpSize));
    json.member("lds_bytes", uint64_t(p.sharedMemPerBlock)).member("memory_bytes", uint64_t(p.totalGlobalMem));
    json.member("major", uint64_t(p.major)).member("minor", uint64_t(p.minor)).close('}');
    return json.text();
  });
}

const char* gfx942_kernel_json(void* function) {
  static std::string buffer;
  return kept(buffer, [function] {
    Json json;
    json.open('{');
    describe(json, given(static_cast<Function*>(function), "function").code());
    json.close('}');
    return json.text();
  });
}

const char* gfx942_lines_json(void* function) {
  static std::string buffer;
  return kept(buffer, [function] {
    const Code& code = given(static_cast<Function*>(function), "function").code();
    std::vector<uint64_t> addresses;
    for (const Instruction& i : code.instructions) addresses.push_back(i.address);
    const std::vector<std::string> sources = code.object->sources_of(addresses);
    Json json;
    json.open('[');
    for (const Instruction& i : code.instructions) {
      json.open('{').member("offset", i.address - code.base).member("text", std::string_view(i.text));
      json.member("source", std::string_view(sources[i.index])).close('}');
    }
    json.close(']');
    return json.text();
  });
}

const char* gfx942_kernels_json() {
  static std::string buffer;
  return kept(buffer, [] {
    Json json;
    json.open('[');
    for (const auto& [module, owned] : runtime().modules) {
      if (!module->has_code()) continue;
      for (const std::string& name : module->object().names()) {
        json.open('{');
        describe(json, module->object().kernel(name));
        json.close('}');
      }
    }
    json.close(']');
    return json.text();
  });
}

const char* gfx942_operations() {
  static std::string buffer;
  return kept(buffer, [] {
    std::set<std::string_view> names;
    for (const auto& [name, operation] : operations(chip())) names.insert(name);
    std::string text;
    for (std::string_view name : names) text.append(name).append("\n");
    return text;
  });
}

}  // extern "C"
