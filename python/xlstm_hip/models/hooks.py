# SPDX-License-Identifier: Apache-2.0
"""Whether a module has hooks or a replaced forward.

An op or the decode engine that computes several modules at once must not bypass such a module.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as all_modules


def watched(module: nn.Module, known_hooks: frozenset[int] = frozenset()) -> bool:
    """Whether the module has forward hooks, others than the known ones, or a replaced forward. Decode steps need no
    watches_gradients.
    """
    hooks = (*module._forward_hooks, *module._forward_pre_hooks)
    return any(hook not in known_hooks for hook in hooks) or "forward" in module.__dict__


def watches_gradients(module: nn.Module) -> bool:
    return bool(module._backward_hooks or module._backward_pre_hooks)


def all_watched() -> bool:
    """Whether hooks for all modules are registered."""
    return bool(
        all_modules._global_forward_hooks
        or all_modules._global_forward_pre_hooks
        or all_modules._global_backward_hooks
        or all_modules._global_backward_pre_hooks
    )


# Files whose modules have a forward that this package's functions can replace.
_MODELS = ("models.blocks", "models.norms", "models.xlstm_large", "models.quantize")
_PACKAGE_FILES = (*_MODELS, "compat.xlstm_large", "integrations.hf")
_PEER_FILES = ("transformers.models.xlstm.modeling_xlstm", "xlstm.xlstm_large.components", "xlstm.xlstm_large.model")
_ROOT = __name__.rsplit(".", 2)[0]
_KNOWN = {
    *(f"{_ROOT}.{file}" for file in _PACKAGE_FILES),
    *_PEER_FILES,
    "torch.nn.modules.linear",
    "torch.nn.modules.sparse",
}
_NOT_IN_A_BLOCK = ("LayerNorm.forward", "MultiHeadRMSNorm.forward")  # norms of the same files


def known(module: nn.Module) -> bool:
    """Whether the module's forward is the standard one: neither replaced nor overridden by a subclass."""
    forward = type(module).forward
    return forward.__module__ in _KNOWN and forward.__qualname__ not in _NOT_IN_A_BLOCK
