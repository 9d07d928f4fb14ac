# SPDX-License-Identifier: Apache-2.0
"""What the files of benchmarks/ share, and `xlstm-hip bench` does not need."""
