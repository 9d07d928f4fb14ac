# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of attention: the float64 truth, tables of arguments, and how a row is run."""
