# SPDX-License-Identifier: Apache-2.0
"""Keeps transformers off the network, and where asked tells it that the xlstm package is not installed."""

import importlib.util
import os

os.environ["HF_HUB_OFFLINE"] = "1"

if os.environ.get("WITHOUT_XLSTM_PACKAGE") and importlib.util.find_spec("transformers") is not None:
    import transformers.utils

    transformers.utils.is_xlstm_available = lambda: False
