// SPDX-License-Identifier: Apache-2.0
// Streams and events. Every call is done when it returns, so there is nothing to wait for, and no clock.
#include "runtime.h"

namespace gfx942::hip {
namespace {

// Handles that are in use: addresses of nothing else.
class Handles {
 public:
  void* add() {
    const std::lock_guard guard(lock_);
    return live_.emplace(std::make_unique<char>()).first->get();
  }
  void remove(const void* handle, const char* what) {
    check(handle, what);
    const std::lock_guard guard(lock_);
    std::erase_if(live_, [&](const auto& p) { return p.get() == handle; });
  }
  void check(const void* handle, const char* what) {
    const std::lock_guard guard(lock_);
    for (const auto& p : live_)
      if (p.get() == handle) return;
    throw Error(hipErrorInvalidHandle, std::string("no such ") + what);
  }

 private:
  std::mutex lock_;
  std::set<std::unique_ptr<char>> live_;
};
Handles streams, events;

void check_event(const void* event) { events.check(event, "event"); }

}  // namespace

void check_stream(hipStream_t stream) {
  if (stream && stream != hipStreamPerThread) streams.check(stream, "stream");
}

}  // namespace gfx942::hip

using namespace gfx942::hip;

extern "C" {

hipError_t hipStreamCreate(hipStream_t* stream) {
  return call([&] { given(stream, "the stream") = static_cast<hipStream_t>(streams.add()); });
}
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) { return hipStreamCreate(stream); }
hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned, int) { return hipStreamCreate(stream); }
hipError_t hipStreamDestroy(hipStream_t stream) {
  return call([&] { streams.remove(stream, "stream"); });
}
hipError_t hipStreamSynchronize(hipStream_t stream) {
  return call([&] { check_stream(stream); });
}
hipError_t hipStreamQuery(hipStream_t stream) { return hipStreamSynchronize(stream); }
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  return call([&] { check_stream(stream), check_event(event); });
}
hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
  return call([&] { check_stream(stream), given(status, "the status") = hipStreamCaptureStatusNone; });
}

hipError_t hipEventCreate(hipEvent_t* event) {
  return call([&] { given(event, "the event") = static_cast<hipEvent_t>(events.add()); });
}
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) { return hipEventCreate(event); }
hipError_t hipEventDestroy(hipEvent_t event) {
  return call([&] { events.remove(event, "event"); });
}
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return call([&] { check_event(event), check_stream(stream); });
}
hipError_t hipEventSynchronize(hipEvent_t event) {
  return call([&] { check_event(event); });
}
hipError_t hipEventQuery(hipEvent_t event) { return hipEventSynchronize(event); }
hipError_t hipEventElapsedTime(float*, hipEvent_t, hipEvent_t) {
  return call([] { throw Error(hipErrorNotSupported, "an interpreter has no clock: events of gfx942 tell no time"); });
}

}  // extern "C"
