# SPDX-License-Identifier: Apache-2.0
"""The mLSTM: its functions, its module, and the registry of its kernels."""
