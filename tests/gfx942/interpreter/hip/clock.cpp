// SPDX-License-Identifier: Apache-2.0
// The launches that were recorded, timed by tests/gfx942/clock, as JSON.
#include <atomic>
#include <future>
#include <sstream>
#include <thread>

#include "gfx942_control.h"
#include "json.h"
#include "launch_time.h"

namespace gfx942::hip {
namespace {

using namespace clock;

LaunchOptions options_of(const std::string& text) {
  LaunchOptions o;
  std::istringstream words(text);
  std::string name;
  for (double value; words >> name >> value;) {
    if (name == "mhz")
      o.mhz = value;
    else if (name == "warm")
      o.warm = value != 0;
    else if (name == "trace")
      o.trace = size_t(value);
    else
      throw Error(hipErrorInvalidValue, "options: expected mhz, warm or trace, got " + name);
  }
  return o;
}

void describe_share(Json& json, const LaunchTime& t) {
  json.member("near_overlap", t.near_overlap).member("far_overlap", t.far_overlap);
  json.member("first_of_xcd", t.share.first_of_xcd).member("first_of_chip", t.share.first_of_chip);
  json.member("warm", uint64_t(t.share.warm));
  const MemoryCounts& m = t.unit.memory;
  json.key("lines").open('{').member("l1", m.l1_hits).member("l2", m.l2_hits).member("mall", m.mall_hits);
  json.member("hbm", m.hbm).member("stored", m.stored).close('}');
}

void describe_unit(Json& json, const Code& code, const UnitTime& u) {
  json.member("unit_cycles", u.cycles).member("instructions", u.instructions).member("wave_cycles", u.wave_cycles);
  json.member("unit_matrix_cycles", u.matrix_busy).member("unit_vector_cycles", u.vector_busy);
  json.member("unit_lds_cycles", u.lds_busy);
  json.key("spent").open('{');
  for (int k = 0; k < kSpent; ++k) json.key(std::string(kSpentNames[size_t(k)]).c_str()).value(u.spent[size_t(k)]);
  json.close('}').key("stalls").open('[');
  std::vector<uint64_t> addresses;
  for (const Instruction& i : code.instructions)
    if (u.executed[i.index]) addresses.push_back(i.address);
  const std::vector<std::string> sources = code.object->sources_of(addresses);
  size_t n = 0;
  for (const Instruction& i : code.instructions) {
    if (!u.executed[i.index]) continue;
    json.open('{').member("offset", i.address - code.base).member("text", std::string_view(i.text));
    json.member("executed", u.executed[i.index]).member("stall", u.stalls[i.index]);
    json.member("reason", kSpentNames[size_t(u.stalled_for[i.index])]);
    json.member("source", std::string_view(sources[n++])).close('}');
  }
  json.close(']').key("trace").open('[');
  for (const Stretch& s : u.trace)
    json.list(std::initializer_list<uint64_t>{s.group, s.wave, s.simd, s.begin, s.end, uint64_t(s.spent)});
  json.close(']');
}

void describe_launch(Json& json, const RecordedLaunch& launch, const LaunchTime& t) {
  json.open('{').member("kernel", std::string_view(launch.code->name)).member("microseconds", t.microseconds);
  json.key("grid").list(launch.grid).key("block").list(launch.block).member("mhz", t.mhz).member("error", t.error);
  json.member("workgroups", t.workgroups).member("sampled", t.sampled).member("resident", uint64_t(t.resident));
  json.member("room", uint64_t(t.room)).member("busy_cus", t.busy_cus).member("group_cycles", t.group_cycles);
  json.member("alone", t.alone).member("matrix_busy", t.matrix_busy);
  describe_share(json, t);
  describe_unit(json, *launch.code, t.unit);
  json.close('}');
}

// Launches do not depend on each other: the host's threads share them.
std::vector<LaunchTime> times_of(const Constants& c, const LaunchOptions& o) {
  const auto& recorded = runtime().recorded;
  std::vector<LaunchTime> times(recorded.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t k; (k = next++) < times.size();) times[k] = time_launch(c, recorded[k].second, o);
  };
  std::vector<std::future<void>> others;
  for (size_t k = 1; k < std::min<size_t>(std::thread::hardware_concurrency(), times.size()); ++k)
    others.push_back(std::async(std::launch::async, work));
  work();
  for (auto& other : others) other.get();
  return times;
}

}  // namespace
}  // namespace gfx942::hip

using namespace gfx942;
using namespace gfx942::hip;

extern "C" const char* gfx942_time_json(const char* constants, const char* options) {
  static std::string buffer;
  return kept(buffer, [&] {
    const Constants c = Constants::parse(&given(constants, "the constants"));
    const LaunchOptions o = options_of(&given(options, "the options"));
    const std::vector<LaunchTime> times = times_of(c, o);
    Json json;
    json.open('[');
    for (size_t k = 0; k < times.size(); ++k) describe_launch(json, runtime().recorded[k].second, times[k]);
    json.close(']');
    return json.text();
  });
}
