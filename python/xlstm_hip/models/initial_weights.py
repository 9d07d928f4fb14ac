# SPDX-License-Identifier: Apache-2.0
"""Initial weights for training.

Normal weights with a small deviation, smaller for projections into the residual stream. Gates start closed (input, bias
-10) and open (forget, biases 3 to 6 over the heads) for every token. transformers also initialises the output gate and
the FFN gate with zero, because it matches "gate" in their names; here they are ordinary weights.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

INPUT_GATE_BIAS = -10.0
FORGET_GATE_BIASES = (3.0, 6.0)


@torch.no_grad()
def fill_initial_weights(model: Any) -> None:
    config = model.config
    small = math.sqrt(2 / (5 * config.embedding_dim))
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            into_residual = name.endswith(("proj_down", "out_proj"))
            std = 2 / config.num_blocks / math.sqrt(module.weight.shape[1]) if into_residual else small
            nn.init.normal_(module.weight, std=std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    for block in model.backbone.blocks:
        layer = block.mlstm_layer
        if config.weight_mode == "fused":
            nn.init.zeros_(layer.ifgate_preact.weight)
            input_bias, forget_bias = layer.ifgate_preact.bias.chunk(2)
        else:
            nn.init.zeros_(layer.igate_preact.weight)
            nn.init.zeros_(layer.fgate_preact.weight)
            input_bias, forget_bias = layer.igate_preact.bias, layer.fgate_preact.bias
        input_bias.fill_(INPUT_GATE_BIAS)
        forget_bias.copy_(torch.linspace(*FORGET_GATE_BIASES, config.num_heads))
