# SPDX-License-Identifier: Apache-2.0
"""Before a suite is collected: xlstm_hip under the other packages' names, and the GPU that their tests ask about."""

from __future__ import annotations

import types

import torch

import xlstm_hip.compat  # noqa: F401

torch.cuda.get_device_capability = lambda device=None: (9, 0)
torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(total_memory=80 * 2**30)  # type: ignore
