// SPDX-License-Identifier: Apache-2.0
// The part of _native that exports kernels' shapes.
#pragma once

#include <pybind11/pybind11.h>

void add_shapes(pybind11::module_&);
