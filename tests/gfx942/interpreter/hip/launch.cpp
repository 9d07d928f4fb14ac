// SPDX-License-Identifier: Apache-2.0
// Launches: the limits that hardware sets, the kernarg segment with its hidden arguments, the dispatch packet.
#include <cstring>

#include "memory.h"
#include "recording.h"
#include "runtime.h"
#include "schedule.h"

namespace gfx942::hip {
namespace {

// What the command processor reads: https://hsafoundation.com/standards, hsa_kernel_dispatch_packet_t.
struct Packet {
  uint16_t header, dimensions;
  uint16_t block[3], reserved;
  uint32_t threads[3];
  uint32_t scratch_bytes, lds_bytes;
  uint64_t kernel, arguments, reserved2, completion;
};
static_assert(sizeof(Packet) == 64);

uint16_t dimensions_of(const Shape& s) { return s.grid[2] * s.block[2] > 1 ? 3 : s.grid[1] * s.block[1] > 1 ? 2 : 1; }

std::string text_of(const std::array<uint32_t, 3>& x) {
  return std::to_string(x[0]) + " x " + std::to_string(x[1]) + " x " + std::to_string(x[2]);
}

uint64_t workgroups_of(const Shape& s) { return uint64_t(s.grid[0]) * s.grid[1] * s.grid[2]; }

void check_limits(const Code& code, const Shape& s) {
  const auto refuse = [&](const std::string& why) {
    throw Error(hipErrorInvalidConfiguration, code.name + ": " + why);
  };
  uint64_t threads = 1;
  for (int axis = 0; axis < 3; ++axis) {
    threads *= s.block[axis];
    if (s.grid[axis] == 0 || s.block[axis] == 0)
      refuse("a grid of " + text_of(s.grid) + " blocks of " + text_of(s.block) + " threads is empty");
    if (s.block[axis] > uint32_t(kMostThreads)) refuse("blocks of " + text_of(s.block) + " threads; 1024 is the most");
    if (uint64_t(s.grid[axis]) * s.block[axis] >> 32)
      refuse("a grid of " + text_of(s.grid) + " blocks has 2^32 threads or more along an axis");
  }
  const uint32_t most = code.most_threads ? code.most_threads : kMostThreads;
  if (threads > most)
    refuse("blocks of " + std::to_string(threads) + " threads; the kernel was compiled for " + std::to_string(most) +
           " at most");
  if (uint64_t(code.lds_bytes) + s.dynamic_lds > chip().lds_bytes)
    refuse(std::to_string(code.lds_bytes) + " + " + std::to_string(s.dynamic_lds) + " bytes of LDS; " +
           std::to_string(chip().lds_bytes) + " are the most");
}

// What a check finds before a kernel runs.
template <class Words>
void complain(Check c, const Code& code, hipError_t error, Words what) {
  const auto words = [&] { return code.name + ": " + what() + named(c); };
  if (!checks().warns(c)) throw Error(error, words());
  checks().warn(c, code.name, 0, words);
}

void check_mode(const Code& code) {
  if (code.sets_fp16_ovfl) throw Fault("kernel " + code.name + " sets FP16_OVFL, which is not implemented");
  if (!(code.mode >> 9 & 1))
    complain(Check::ieee_mode, code, hipErrorLaunchFailure, [] { return std::string("begins without IEEE mode"); });
}

// Arguments that the compiler adds:
// https://llvm.org/docs/AMDGPUUsage.html#amdgpu-amdhsa-code-object-kernel-argument-metadata-map-table-v5
uint64_t hidden(const Code& code, const Argument& a, const Shape& s) {
  const std::string_view kind = a.kind;
  const int axis = kind.back() - 'x';
  if (kind.starts_with("hidden_block_count_")) return s.grid[axis];
  if (kind.starts_with("hidden_group_size_")) return s.block[axis];
  if (kind == "hidden_grid_dims") return dimensions_of(s);
  if (kind == "hidden_dynamic_lds_size") return s.dynamic_lds;
  if (kind == "hidden_private_base") return kPrivateAperture;
  if (kind == "hidden_shared_base") return kSharedAperture;
  // Blocks that are cut short, offsets of the grid: OpenCL's. Services of the host are not there: a kernel that uses
  // one reads address 0, which is a fault.
  for (std::string_view zero :
       {"hidden_remainder_x", "hidden_remainder_y", "hidden_remainder_z", "hidden_global_offset_x",
        "hidden_global_offset_y", "hidden_global_offset_z", "hidden_none", "hidden_printf_buffer",
        "hidden_hostcall_buffer", "hidden_default_queue", "hidden_completion_action", "hidden_multigrid_sync_arg",
        "hidden_heap_v1", "hidden_queue_ptr"})
    if (kind == zero) return 0;
  throw Error(hipErrorNotSupported, code.name + ": argument " + a.kind + " is not implemented");
}

// Packet and kernarg segment where the kernel can read them, while it runs. Each ends where its memory does.
class Segments {
 public:
  Segments(const Code& code, const Shape& shape, const Arguments& given)
      : bytes_((code.kernarg_bytes + 15) / 16 * 16),  // compilers read in pieces of 16 bytes
        lines_(3 + (bytes_ + 63) / 64) {
    fill(code, shape, given);
    Packet packet{};
    packet.header = 2;  // a kernel dispatch
    packet.dimensions = dimensions_of(shape);
    for (int axis = 0; axis < 3; ++axis) {
      packet.block[axis] = uint16_t(shape.block[axis]);
      packet.threads[axis] = shape.grid[axis] * shape.block[axis];
    }
    packet.scratch_bytes = code.scratch_bytes;
    packet.lds_bytes = code.lds_bytes + shape.dynamic_lds;
    packet.arguments = reinterpret_cast<uint64_t>(arguments());
    std::memcpy(this->packet(), &packet, sizeof packet);
    memory().add(this->packet(), sizeof packet);
    if (bytes_) memory().add(arguments(), bytes_);
  }
  ~Segments() {
    memory().remove(packet());
    memory().remove(arguments());
  }
  Segments(const Segments&) = delete;

  uint8_t* packet() { return lines_[0].byte; }
  uint8_t* arguments() { return lines_[2].byte; }

 private:
  void fill(const Code& code, const Shape& shape, const Arguments& given) {
    size_t place = 0;
    for (const Argument& a : code.arguments) {
      if (a.offset + a.size > bytes_) throw Error(hipErrorInvalidImage, code.name + ": an argument beyond the segment");
      uint8_t* to = arguments() + a.offset;
      if (a.kind.starts_with("hidden_")) {
        const uint64_t x = hidden(code, a, shape);
        std::memcpy(to, &x, std::min<size_t>(a.size, sizeof x));
      } else if (a.kind == "by_value" || a.kind == "global_buffer" || a.kind == "dynamic_shared_pointer") {
        if (given.each) {
          std::memcpy(to, given.each[place++], a.size);
        } else {
          copy(code, a, given.buffer, to);
        }
      } else {
        throw Error(hipErrorNotSupported, code.name + ": an argument of kind " + a.kind + " is not implemented");
      }
    }
  }

  static void copy(const Code& code, const Argument& a, std::span<const uint8_t> given, uint8_t* to) {
    const size_t end = a.offset + a.size, bytes = given.size() > a.offset ? given.size() - a.offset : 0;
    if (bytes < a.size) {
      complain(Check::argument_block, code, hipErrorInvalidValue, [&] {
        return "its arguments need " + std::to_string(end) + " bytes, " + std::to_string(given.size()) + " were given";
      });
      std::memset(to, 0xff, a.size);
    }
    if (bytes) std::memcpy(to, given.data() + a.offset, std::min<size_t>(bytes, a.size));
  }

  struct alignas(64) Line {
    uint8_t byte[64] = {};
  };
  size_t bytes_;
  std::vector<Line> lines_;
};

// What <<<>>> leaves for the launch that follows.
struct Configuration {
  dim3 grid, block;
  size_t dynamic_lds;
  hipStream_t stream;
};
thread_local std::vector<Configuration> configurations;

Shape shape_of(const dim3& grid, const dim3& block, size_t dynamic_lds) {
  return {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, uint32_t(std::min<size_t>(dynamic_lds, UINT32_MAX))};
}

}  // namespace

void launch(const Function& function, const Shape& shape, const Arguments& arguments, bool cooperative) {
  const Code& code = function.code();
  check_limits(code, shape);
  check_mode(code);
  const std::lock_guard guard(runtime().lock);  // one at a time, as on one stream
  Record& record = runtime().records[&function];
  Segments segments(code, shape, arguments);
  Launch l;
  l.code = &code;
  l.grid = shape.grid;
  l.block = shape.block;
  l.dynamic_lds = shape.dynamic_lds;
  l.arguments = segments.arguments();
  l.packet = segments.packet();
  const uint64_t held = uint64_t(workgroups_of_unit(l)) * uint64_t(chip().compute_units);
  if (cooperative && workgroups_of(shape) > held)
    throw Error(hipErrorCooperativeLaunchTooLarge, code.name + ": a cooperative launch of " +
                                                       std::to_string(workgroups_of(shape)) +
                                                       " blocks; the chip holds " + std::to_string(held) + " at once");
  const bool takes_turns = cooperative || runtime().schedule;
  const uint64_t recorded = runtime().recorded_instructions;
  if (takes_turns && ((recorded && !cooperative) || runtime().options.sample != 1))
    throw Error(hipErrorNotSupported,
                code.name + ": a launch whose workgroups take turns can be neither recorded nor sampled");
  ++record.launches[shape];
  if (cooperative && recorded) {  // after all have run, no workgroup waits for another
    Tally uncounted(code.instructions.size());
    run_in_turns(l, uncounted, runtime().schedule);
  }
  if (recorded)
    runtime().recorded.emplace_back(&function, gfx942::record(l, record.tally, recorded));
  else if (takes_turns)
    run_in_turns(l, record.tally, runtime().schedule);
  else
    run(l, record.tally, runtime().options);
}

}  // namespace gfx942::hip

using namespace gfx942;
using namespace gfx942::hip;

extern "C" {

hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_lds, hipStream_t stream) {
  configurations.push_back({grid, block, dynamic_lds, stream});
  return hipSuccess;
}

hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic_lds, hipStream_t* stream) {
  return call([&] {
    if (configurations.empty()) throw Error(hipErrorMissingConfiguration, "a kernel was called without <<<>>>");
    const Configuration c = configurations.back();
    configurations.pop_back();
    *grid = c.grid, *block = c.block, *dynamic_lds = c.dynamic_lds, *stream = c.stream;
  });
}

hipError_t hipLaunchKernel(const void* host_function, dim3 grid, dim3 block, void** arguments, size_t dynamic_lds,
                           hipStream_t stream) {
  return call([&] {
    check_stream(stream);
    launch(runtime().kernel(host_function), shape_of(grid, block, dynamic_lds), {arguments, {}});
  });
}

hipError_t hipLaunchCooperativeKernel(const void* host_function, dim3 grid, dim3 block, void** arguments,
                                      unsigned dynamic_lds, hipStream_t stream) {
  return call([&] {
    check_stream(stream);
    launch(runtime().kernel(host_function), shape_of(grid, block, dynamic_lds), {arguments, {}}, true);
  });
}

hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_lds,
                                            hipStream_t stream, void** arguments) {
  return call([&] {
    check_stream(stream);
    launch(given(reinterpret_cast<Function*>(function), "the function"),
           shape_of({grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_lds), {arguments, {}}, true);
  });
}

hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* host_function, int threads,
                                                        size_t dynamic_lds) {
  return call([&] {
    Launch l;
    l.code = &runtime().kernel(host_function).code();
    const Shape shape = shape_of({1}, {unsigned(std::max(threads, 0))}, dynamic_lds);
    check_limits(*l.code, shape);
    l.block = shape.block, l.dynamic_lds = shape.dynamic_lds;
    given(blocks, "the number of blocks") = int(workgroups_of_unit(l));
  });
}

hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_lds,
                                 hipStream_t stream, void** arguments, void** extra) {
  return call([&] {
    check_stream(stream);
    Arguments explicit_ones{arguments, {}};
    const uint8_t* buffer = nullptr;
    size_t bytes = 0;
    for (void** x = extra; x && *x != HIP_LAUNCH_PARAM_END; x += 2) {
      if (*x == HIP_LAUNCH_PARAM_BUFFER_POINTER)
        buffer = static_cast<const uint8_t*>(x[1]);
      else if (*x == HIP_LAUNCH_PARAM_BUFFER_SIZE)
        bytes = *static_cast<const size_t*>(x[1]);
      else
        throw Error(hipErrorInvalidValue, "an entry of extra that HIP does not know");
    }
    if (arguments && extra) throw Error(hipErrorInvalidValue, "both kernelParams and extra are given");
    explicit_ones.buffer = {buffer, bytes};
    launch(given(reinterpret_cast<Function*>(function), "the function"),
           shape_of({grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_lds), explicit_ones);
  });
}

hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, const void* host_function) {
  return call([&] {
    const Code& code = runtime().kernel(host_function).code();
    hipFuncAttributes& a = given(attributes, "the attributes") = {};
    a.localSizeBytes = code.scratch_bytes;
    a.maxDynamicSharedSizeBytes = int(chip().lds_bytes - code.lds_bytes);
    a.maxThreadsPerBlock = code.most_threads ? int(code.most_threads) : kMostThreads;
    a.numRegs = int(code.vgprs);
    a.sharedSizeBytes = code.lds_bytes;
  });
}

// A kernel may have all of its CU's LDS without asking.
hipError_t hipFuncSetAttribute(const void* host_function, hipFuncAttribute attribute, int value) {
  return call([&] {
    const Code& code = runtime().kernel(host_function).code();
    if (attribute == hipFuncAttributeMaxDynamicSharedMemorySize &&
        (value < 0 || uint32_t(value) > chip().lds_bytes - code.lds_bytes))
      throw Error(hipErrorInvalidValue, code.name + ": more LDS than the chip has");
  });
}

}  // extern "C"
