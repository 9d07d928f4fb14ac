// SPDX-License-Identifier: Apache-2.0
#include "api/call.h"

namespace xlstm {

void check_workspace(const void* workspace, size_t bytes, size_t needed) {
  if (bytes < needed || (needed && !workspace))
    throw WorkspaceTooSmall("workspace: expected " + std::to_string(needed) + " bytes, got " +
                            std::to_string(workspace ? bytes : 0));
}

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace xlstm

using namespace xlstm;

const char* xlstm_last_error(void) { return last_error().c_str(); }
