# SPDX-License-Identifier: Apache-2.0
"""For vLLM, which reads these when it is imported, here and in the processes that tests start."""

from __future__ import annotations

import importlib.util
import os

if importlib.util.find_spec("vllm") is not None:  # else these tests are skipped, and others run in this process
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: a test sees and changes its parts
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_COMPILE_DISABLE": "1",  # parts of vLLM's sampler, which take longer to compile than a test
    }
