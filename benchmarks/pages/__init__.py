# SPDX-License-Identifier: Apache-2.0
"""How result files of benchmarks/ look: tables and a picture of each, from the file alone."""
