# SPDX-License-Identifier: Apache-2.0
"""The xLSTM-7B architecture on this package's kernels; checkpoints; generation."""

from .config import xLSTMLargeConfig
from .config_files import SpecialTokens
from .generation import Generated, Logprobs, Stream, generate, logprobs_of
from .mapping import CheckpointError, create_parameter_mapping, create_piece_mapping
from .norms import MultiHeadLayerNorm
from .pretrained import load_pretrained, save_pretrained
from .sampling import Sampling
from .states import SavedState, load_state, save_state
from .text import Text, TokenLogprob, generate_text
from .tokenizer import Tokenizer, load_tokenizer
from .xlstm_large import xLSTMLarge

__all__ = [
    "CheckpointError",
    "Generated",
    "Logprobs",
    "MultiHeadLayerNorm",
    "Sampling",
    "SavedState",
    "SpecialTokens",
    "Stream",
    "Text",
    "TokenLogprob",
    "Tokenizer",
    "create_parameter_mapping",
    "create_piece_mapping",
    "generate",
    "generate_text",
    "load_pretrained",
    "load_state",
    "load_tokenizer",
    "logprobs_of",
    "save_pretrained",
    "save_state",
    "xLSTMLarge",
    "xLSTMLargeConfig",
]


def __dir__() -> list[str]:
    return __all__
