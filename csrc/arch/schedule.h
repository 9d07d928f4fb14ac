// SPDX-License-Identifier: Apache-2.0
// The schedule that the user asks for.
#pragma once

namespace xlstm::gpu {

// common: the one that every chip has, for comparisons. persistent: as automatic, and one launch for a model's step on
// CDNA (engine/megakernel_cdna), which no hardware has run. launches: as automatic, but a model's step on Hopper is
// never one launch, whose blocks must all run at once.
enum class Schedule { automatic, common, persistent, launches };

// XLSTM_HIP_GPU_SCHEDULE: auto, common, persistent or launches; std::runtime_error where it has another value. The
// variable is read at each call, so that one process can time all.
Schedule asked_schedule();

}  // namespace xlstm::gpu
