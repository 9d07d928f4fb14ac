# SPDX-License-Identifier: Apache-2.0
"""Code that knows nothing of us: Hugging Face models, and what imports flash_attn, flash_attention_amd or flash_mla."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from xlstm_hip.attention import register_with_transformers
from xlstm_hip.attention.models import _packed_ends

transformers = pytest.importorskip("transformers")
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip


def models(kind: str, **options: Any) -> tuple[Any, Any]:
    """The same model with eager attention and with ours."""
    register_with_transformers()
    config = getattr(transformers, f"{kind}Config")(**SMALL | options)
    torch.manual_seed(0)
    eager = getattr(transformers, f"{kind}ForCausalLM")._from_config(config, attn_implementation="eager").eval()
    ours = getattr(transformers, f"{kind}ForCausalLM")._from_config(config, attn_implementation="xlstm_hip").eval()
    ours.load_state_dict(eager.state_dict())
    return eager, ours


@pytest.mark.parametrize(
    "kind, options",
    [
        ("Llama", {}),
        ("Mistral", {"sliding_window": 7}),
        ("Gemma2", {"sliding_window": 7, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}),
    ],
)
@pytest.mark.parametrize("padded", [False, True])
def test_a_model(kind: str, options: dict[str, Any], padded: bool) -> None:
    eager, ours = models(kind, **options)
    tokens = torch.randint(1, 64, (2, 20))
    mask = torch.ones_like(tokens)
    if padded:
        mask[0, :6] = 0
    got, expected = (m(tokens, attention_mask=mask, labels=tokens) for m in (ours, eager))
    used = mask.bool()
    torch.testing.assert_close(got.logits[used], expected.logits[used], atol=1e-4, rtol=1e-4)
    for model, loss in ((ours, got.logits[used].sum()), (eager, expected.logits[used].sum())):
        model.zero_grad()
        loss.backward()
    for (name, x), y in zip(ours.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad, atol=1e-3, rtol=1e-3, msg=name)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation(cache: str) -> None:
    eager, ours = models("Llama")
    tokens, mask = torch.randint(1, 64, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    arguments: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    expected = eager.generate(tokens, **arguments)
    assert torch.equal(ours.generate(tokens, **arguments, cache_implementation=cache), expected)


def test_positions_that_start_over() -> None:
    """Sequences packed into one row, told by position_ids."""
    _, ours = models("Llama")
    tokens = torch.randint(1, 64, (1, 20))
    positions = torch.cat([torch.arange(8), torch.arange(12)])[None]
    got = ours(tokens, position_ids=positions).logits
    expected = torch.cat([ours(tokens[:, :8]).logits, ours(tokens[:, 8:]).logits], 1)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_packed_ends_stay_on_the_positions_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, which fake tensors stand for: mixing devices raises."""
    positions = torch.cat([torch.arange(8), torch.arange(12)])[None]
    ends = _packed_ends(positions, 1, 20)
    assert ends is not None and ends.tolist() == [0, 8, 20]
    monkeypatch.setattr(torch, "nonzero", lambda x: x.new_empty(1, 1, dtype=torch.int64))  # it has no fake size
    with FakeTensorMode():
        fake = _packed_ends(torch.empty(1, 20, dtype=torch.int64, device="cuda"), 1, 20)
    assert fake is not None and fake.shape == (3,) and fake.device.type == "cuda"


def test_what_a_model_asks_in_vain_is_refused() -> None:
    _, ours = models("Llama")
    with pytest.raises(ValueError, match="output_attentions"):
        ours(torch.ones(1, 4, dtype=torch.long), output_attentions=True)


CASES = {
    "flash_attn": """
        import flash_attn, torch
        from flash_attn import flash_attn_func, flash_attn_with_kvcache
        from flash_attn.flash_attn_interface import flash_attn_varlen_func
        from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
        import xlstm_hip.attention as ours
        assert flash_attn_func is ours.flash_attn_func and flash_attn.__version__.startswith("2.")
        x, mask = torch.randn(2, 9, 4, 8), torch.ones(2, 9, dtype=torch.bool)
        mask[0, 5:] = False
        tokens, places, ends, longest, used = unpad_input(x, mask)
        assert longest == 9 and used.tolist() == [5, 9]
        out = pad_input(flash_attn_varlen_func(tokens, tokens, tokens, ends, ends, 9, 9, causal=True), places, 2, 9)
        assert torch.equal(index_first_axis(x.flatten(0, 1), places), tokens)
        torch.testing.assert_close(out[1:], flash_attn_func(x, x, x, causal=True)[1:])
        assert not out[0, 5:].any()
    """,
    "flash_attention_amd": """
        import torch
        from flash_attention_amd import FlashAttention, flash_attn_func
        q, k, v = torch.randn(3, 2, 30, 4, 8)
        out = flash_attn_func(q, k, v, causal=True, softmax_scale=0.1, block_size=128)
        assert out.shape == q.shape
        out, probs = flash_attn_func(q, k, v, 0.0, True, return_attn_probs=True)
        torch.testing.assert_close(out, torch.einsum("bhqk,bkhd->bqhd", probs, v))
        module = FlashAttention(attention_dropout=0.1)
        assert module(q, k, v, causal=True).shape == q.shape
        assert torch.equal(FlashAttention(dropout=0.1, causal=True).eval()(q, k, v), out)
        longer = FlashAttention(causal=True)(q[:, :10], k, v)
        torch.testing.assert_close(longer, out[:, :10])
        for name, wrong in {
            "mask: expected None": lambda: module(q, k, v, torch.ones(2, 30)),
            "block_size: expected one of 32, 64, 128, 256": lambda: flash_attn_func(q, k, v, block_size=100),
            "causal: expected True or False, got 'no'": lambda: flash_attn_func(q, k, v, causal="no"),
            "return_attn_probs: expected True or False, got 'no'": lambda: flash_attn_func(
                q, k, v, return_attn_probs="no"
            ),
            "causal: expected True or False, got 1": lambda: module(q, k, v, causal=1),
            "causal: expected True or False, got 0": lambda: FlashAttention(causal=0),
            "attention_dropout: expected 0 <= p < 1": lambda: FlashAttention(attention_dropout=1.0),
            "dropout: expected a finite number": lambda: FlashAttention("x"),
            "k: expected a torch.Tensor": lambda: flash_attn_func(q, None, v, causal=True),
        }.items():
            try:
                wrong()
            except (NotImplementedError, TypeError, ValueError) as e:
                assert str(e).startswith(name), e
            else:
                raise AssertionError(name)
    """,
    "flash_mla": """
        import torch
        from flash_mla import flash_mla_with_kvcache, get_mla_metadata
        used = torch.tensor([70, 9], dtype=torch.int32)
        q, cache = torch.randn(2, 1, 16, 576).bfloat16(), torch.randn(4, 64, 1, 576).bfloat16()
        table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
        schedule, splits = get_mla_metadata(used, 16, 1)
        out, lse = flash_mla_with_kvcache(q, cache, table, used, 512, schedule, splits, causal=True)
        assert out.shape == (2, 1, 16, 512) and lse.shape == (2, 16, 1)
    """,
    "what is not offered": """
        for name in ("flash_attn.layers.rotary", "flash_attn.ops", "flash_attention_amd.kernels"):
            try:
                __import__(name)
            except ImportError:
                continue
            raise AssertionError(name)
    """,
}


@pytest.mark.parametrize("case", CASES)
def test_compat(case: str) -> None:
    code = "import xlstm_hip.compat\n" + textwrap.dedent(CASES[case])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
