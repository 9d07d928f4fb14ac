# SPDX-License-Identifier: Apache-2.0
"""transformers' common tests of models, from its source distribution, for xLSTM: as it is, then accelerated.

transformers' own tests of xLSTM are not in that distribution, nor are the parts of the common tests for export and
generation; tests/integrations has those of this project.
"""

from __future__ import annotations

import sys
import types
import unittest
from typing import Any
from unittest import mock

import transformers.utils
from sdists import sdist

transformers.utils.is_xlstm_available = lambda: False  # of its two models that of its own
from transformers import xLSTMConfig, xLSTMForCausalLM, xLSTMModel  # noqa: E402

from xlstm_hip import hf  # noqa: E402


def common_tests() -> types.ModuleType:
    """tests/test_modeling_common.py as a module of a package, where it imports what is not in the distribution."""
    package = types.ModuleType("transformers_tests")
    package.__path__ = [str(sdist("transformers") / "tests")]
    sys.modules[package.__name__] = package
    for folder, module, mixin in (
        ("exporters", "test_export", "ExportTesterMixin"),
        ("generation", "test_utils", "GenerationTesterMixin"),
    ):
        for name in (folder, f"{folder}.{module}"):
            absent = types.ModuleType(f"{package.__name__}.{name}")
            absent.__path__ = []
            sys.modules[absent.__name__] = absent
        setattr(absent, mixin, type(mixin, (), {}))
    from transformers_tests import test_modeling_common  # type: ignore

    return test_modeling_common


common = common_tests()


class ModelTester:
    """A small model and inputs, in the form that the common tests ask for."""

    batch_size, seq_length, hidden_size, num_hidden_layers, vocab_size = 3, 24, 128, 2, 99
    num_attention_heads = 4
    is_training = True

    def get_config(self) -> xLSTMConfig:
        return xLSTMConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            ffn_proj_factor=2.0,
            chunk_size=8,
            pad_token_id=0,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[xLSTMConfig, dict[str, Any]]:
        tokens = common.ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        return self.get_config(), {"input_ids": tokens}


class Common(common.ModelTesterMixin, sys.modules["transformers_tests.generation.test_utils"].GenerationTesterMixin):
    all_model_classes = (xLSTMModel, xLSTMForCausalLM)
    has_attentions = False
    accelerated = False

    def setUp(self) -> None:
        self.model_tester = ModelTester()


class Plain(Common, unittest.TestCase):
    """What fails here may fail accelerated."""


class Accelerated(Common, unittest.TestCase):
    accelerated = True

    def setUp(self) -> None:
        super().setUp()
        original = xLSTMModel.__init__
        self.accelerations = 0

        def init(model: xLSTMModel, *arguments: Any, **options: Any) -> None:
            original(model, *arguments, **options)
            self.accelerations += 1
            hf.accelerate(model)

        patch = mock.patch.object(xLSTMModel, "__init__", init)
        patch.start()
        self.addCleanup(patch.stop)

    def test_models_are_accelerated(self) -> None:
        xLSTMForCausalLM(self.model_tester.get_config())
        assert self.accelerations == 1
