// SPDX-License-Identifier: Apache-2.0
#include "api/call.h"

namespace xlstm {

void* workspace_block(void* workspace, size_t bytes, void* (*allocate)(void*, size_t), void* self, size_t needed) {
  if (needed == 0) return nullptr;
  const size_t total = needed + kWorkspaceAlignment;
  if (workspace || !allocate) {
    if (bytes < total || !workspace)
      throw WorkspaceTooSmall("workspace: expected " + std::to_string(total) + " bytes, got " +
                              std::to_string(workspace ? bytes : 0));
    return aligned(workspace);
  }
  void* const block = allocate(self, total);
  if (!block) throw std::runtime_error("allocate: returned no block of " + std::to_string(total) + " bytes");
  return aligned(block);
}

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace xlstm

using namespace xlstm;

const char* xlstm_last_error(void) { return last_error().c_str(); }
