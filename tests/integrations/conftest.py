# SPDX-License-Identifier: Apache-2.0
"""On request, tells transformers that the xlstm package is not installed."""

import importlib.util
import os

if os.environ.get("WITHOUT_XLSTM_PACKAGE") and importlib.util.find_spec("transformers") is not None:
    import transformers.utils

    transformers.utils.is_xlstm_available = lambda: False
