# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests: the float64 truths, shapes and cases, error bounds, and the runner of the GPU's tests."""
