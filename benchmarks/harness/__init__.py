# SPDX-License-Identifier: Apache-2.0
"""Shared by the files of benchmarks/; `xlstm-hip bench` does not need it."""
