// SPDX-License-Identifier: Apache-2.0
// What tests and tools ask of this libamdhip64 beyond HIP. C, so that ctypes reaches it. Texts that are returned live
// until the same function is called again; one that fails returns null, and gfx942_last_fault() says why.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- how launches run
void gfx942_set_sample(uint32_t every);  // only each so many-th workgroup of a launch: results are then incomplete
// From now on the waves of a launch take turns, the same ones with the same seed; 0: workgroups run one after the
// other, except in cooperative launches. At the start it is what GFX942_SCHEDULE says.
void gfx942_set_schedule(uint64_t seed);
uint64_t gfx942_schedule(void);
// From now on a launch runs as many workgroups as make about so many wave instructions, and what they do is recorded,
// to be timed; 0: launches run as they are, and nothing is. What was recorded stays until it is forgotten.
void gfx942_set_recording(uint64_t wave_instructions);
void gfx942_forget_recordings(void);
const char* gfx942_recordings_json(void);  // the words of interpreter/events.h
// How long each of the recorded launches takes on the chip that the constants describe: lines "name value" of
// clock/constants.h. Options, in lines as well: mhz, warm, trace (clock/launch_time.h).
const char* gfx942_time_json(const char* constants, const char* options);

// ---- checks (checks.h): what is found wrong ends the run, or is a warning on stderr
const char* gfx942_checks_json(void);                      // all of them, in a list
int gfx942_set_check(const char* name, const char* mode);  // a name or "all"; "error" or "warn". A hipError_t
const char* gfx942_warnings_json(void);                    // since the last reset: an object for each place in a kernel
void gfx942_reset_warnings(void);

// ---- memory of the host that kernels may touch, beside what hipMalloc gave
void gfx942_register_memory(const void* begin, size_t bytes);
void gfx942_unregister_memory(const void* begin);

// ---- what happened. JSON is a list with an object per kernel.
const char* gfx942_last_fault(void);  // the text of this thread's last failed call
// Of kernels that were launched and have `part` in their names, if asked for instruction by instruction.
const char* gfx942_counters_json(const char* part, int with_instructions);
void gfx942_reset_counters(void);

// ---- what there is
const char* gfx942_device_json(void);            // the device, as an object
const char* gfx942_kernel_json(void* function);  // of a hipFunction_t: its arguments, registers, LDS
const char* gfx942_lines_json(void* function);   // its instructions, with source lines where the object has them
const char* gfx942_kernels_json(void);           // of every kernel in every code object that was loaded
const char* gfx942_operations(void);             // the mnemonics that are implemented for it, a line each

#ifdef __cplusplus
}
#endif
