# SPDX-License-Identifier: Apache-2.0
"""Measuring: clocks, memory, the facts of the machine, and what a benchmark leaves behind."""
