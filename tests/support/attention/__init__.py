# SPDX-License-Identifier: Apache-2.0
"""What the tests of attention share: the float64 truth, tables of arguments, and how a row is run."""
