# SPDX-License-Identifier: Apache-2.0
"""Keeps transformers off the network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
