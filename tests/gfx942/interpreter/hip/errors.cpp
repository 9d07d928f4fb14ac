// SPDX-License-Identifier: Apache-2.0
// Errors belong to the thread whose call failed, with a text that says what was wrong with that call.
#include <utility>

#include "gfx942_control.h"
#include "runtime.h"

namespace gfx942::hip {
namespace {

struct Last {
  hipError_t code = hipSuccess;  // until it is asked for
  hipError_t text_of = hipSuccess;
  std::string text;
};
thread_local Last last;

struct Known {
  hipError_t code;
  const char *name, *text;
};
#define KNOWN_ERROR(code, text) {code, #code, text}
constexpr Known kErrors[] = {
    KNOWN_ERROR(hipSuccess, "no error"),
    KNOWN_ERROR(hipErrorInvalidValue, "invalid argument"),
    KNOWN_ERROR(hipErrorOutOfMemory, "out of memory"),
    KNOWN_ERROR(hipErrorInvalidConfiguration, "invalid configuration argument"),
    KNOWN_ERROR(hipErrorInvalidSymbol, "invalid device symbol"),
    KNOWN_ERROR(hipErrorInvalidDevicePointer, "invalid device pointer"),
    KNOWN_ERROR(hipErrorMissingConfiguration, "__global__ function call is not configured"),
    KNOWN_ERROR(hipErrorInvalidDeviceFunction, "invalid device function"),
    KNOWN_ERROR(hipErrorInvalidDevice, "invalid device ordinal"),
    KNOWN_ERROR(hipErrorInvalidImage, "device kernel image is invalid"),
    KNOWN_ERROR(hipErrorNoBinaryForGpu, "no kernel image is available for execution on the device"),
    KNOWN_ERROR(hipErrorFileNotFound, "file not found"),
    KNOWN_ERROR(hipErrorInvalidHandle, "invalid resource handle"),
    KNOWN_ERROR(hipErrorNotFound, "named symbol not found"),
    KNOWN_ERROR(hipErrorLaunchFailure, "unspecified launch failure"),
    KNOWN_ERROR(hipErrorNotSupported, "operation not supported"),
    KNOWN_ERROR(hipErrorUnknown, "unknown error"),
};
#undef KNOWN_ERROR
const Known& known(hipError_t code) {
  for (const Known& e : kErrors)
    if (e.code == code) return e;
  return *(std::end(kErrors) - 1);
}

}  // namespace

hipError_t failed(hipError_t code, const std::string& text) {
  last = {code, code, text};
  return code;
}
const std::string& last_text() { return last.text; }

}  // namespace gfx942::hip

using namespace gfx942::hip;

extern "C" {

hipError_t hipGetLastError() { return std::exchange(last.code, hipSuccess); }
hipError_t hipPeekAtLastError() { return last.code; }
const char* hipGetErrorName(hipError_t code) { return known(code).name; }
const char* hipGetErrorString(hipError_t code) {
  return code != hipSuccess && code == last.text_of && !last.text.empty() ? last.text.c_str() : known(code).text;
}

const char* gfx942_last_fault() { return last_text().c_str(); }

}  // extern "C"
