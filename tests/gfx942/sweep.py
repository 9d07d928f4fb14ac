# SPDX-License-Identifier: Apache-2.0
"""The GPU's whole table on the emulated device, as support/gpu_runner.py runs it on a real one, with the checks that
can run there. Hours.

export PYTHONPATH=build_backend:tests:tests/amd:tests/gfx942/support
python tests/gfx942/sweep.py                   everything
python tests/gfx942/sweep.py "100 tokens"      what has this in its name
"""

from __future__ import annotations

import sys

import emulated_torch

if __name__ == "__main__":
    emulated_torch.import_package()
    from support import gpu_checks
    from support.gpu_runner import main

    gpu_checks.CHECKS[:] = [check for check in gpu_checks.CHECKS if check.__name__ in emulated_torch.CHECKS]
    sys.exit(main(["--truth-on", "cpu", *sys.argv[1:]]))
