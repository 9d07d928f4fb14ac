// SPDX-License-Identifier: Apache-2.0
// XLSTM_ISA names the instruction set that a kernel source is compiled for, and its namespace. CMake defines it; a test
// that includes a kernel's header has the portable one.
#pragma once

#ifndef XLSTM_ISA
#define XLSTM_ISA portable
#endif
