# SPDX-License-Identifier: Apache-2.0
"""`python -m xlstm_hip` is the command xlstm-hip."""

import sys

from .cli import main

sys.exit(main())
