# SPDX-License-Identifier: Apache-2.0
"""Code that knows nothing of us: Hugging Face models, and what imports flash_attn, flash_attention_amd or flash_mla."""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from xlstm_hip.attention import register_with_transformers
from xlstm_hip.attention.transformers import _IDLE, _is_a_models, _packed_ends, attention_forward

transformers = pytest.importorskip("transformers")
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0,
    "initializer_range": 0.5,  # with the default, weights of 0.02, scores are all near 0 and attention is a mean
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LAYERS: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
LAYERS |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
BART = {"vocab_size": 64, "d_model": 32, **LAYERS, "max_position_embeddings": 64, "pad_token_id": 0, "init_std": 0.5}
TIMES = (
    8  # what roundings do here, beside what one rounding of every weight does to the eager model: measured, 0.2 to 2
)


def pair(model: str, config: Any) -> tuple[Any, Any]:
    """The same model with eager attention and with ours. Each has its config: transformers writes the name of the
    attention into it."""
    register_with_transformers()
    torch.manual_seed(0)
    results = []
    for name in ("eager", "xlstm_hip"):
        one = getattr(transformers, model)._from_config(copy.deepcopy(config), attn_implementation=name).eval()
        assert one.config._attn_implementation == name
        results.append(one)
    eager, fused = results
    fused.load_state_dict(eager.state_dict())
    return eager, fused


def models(kind: str, **options: Any) -> tuple[Any, Any]:
    return pair(f"{kind}ForCausalLM", getattr(transformers, f"{kind}Config")(**SMALL | options))


def moved(model: Any) -> Any:
    """The model with every weight moved by up to one rounding."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for x in copied.parameters():
            x.mul_(1 + torch.finfo(x.dtype).eps * (2 * torch.rand_like(x) - 1))
    return copied


def check_near(actual: Tensor, expected: Tensor, beside: Tensor, label: str = "") -> None:
    """beside: what the moved model makes of it."""
    error, roundings, size = (float(x.abs().max()) for x in (actual - expected, beside - expected, expected))
    allowed = TIMES * roundings + torch.finfo(expected.dtype).eps * size
    assert error <= allowed, f"{label}: error {error:.3g}, allowed {allowed:.3g}"


def check_call(eager: Any, fused: Any, used: Tensor | None = None, **inputs: Any) -> None:
    """The first output of a call at the places in use, and the gradients of every weight."""
    trio = (fused, eager, moved(eager))
    outs = [model(**inputs)[0] for model in trio]
    outs = outs if used is None else [out[used] for out in outs]
    check_near(*outs, "the output")
    sent = torch.randn_like(outs[0])
    for out in outs:
        (out * sent).sum().backward()
    for name, *of_trio in zip(dict(fused.named_parameters()), *(model.parameters() for model in trio), strict=True):
        x, y, z = (parameter.grad for parameter in of_trio)
        if y is None:
            assert x is None, name
        else:
            check_near(x, y, z, name)


GEMMA = {"sliding_window": 7, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 20}
CHOSEN = {"num_local_experts": 4, "num_experts_per_tok": 2}
CAUSAL: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {}),
    ("Llama", {"is_causal": False}),
    ("Mistral", {"sliding_window": 7}),
    ("Gemma2", GEMMA),
    ("Qwen3", {}),
    ("GptOss", {**CHOSEN, "sliding_window": 7}),  # has sinks
    ("Mixtral", CHOSEN),
    ("Qwen3Moe", EXPERTS),
    ("Olmoe", EXPERTS),
]


@pytest.mark.parametrize("kind, options", CAUSAL)
@pytest.mark.parametrize("padded", [False, True])
def test_a_model(kind: str, options: dict[str, Any], padded: bool) -> None:
    eager, fused = models(kind, **options)
    tokens = torch.randint(1, 64, (2, 20))
    mask = torch.ones_like(tokens)
    if padded:
        mask[0, :6] = 0
    check_call(eager, fused, mask.bool(), input_ids=tokens, attention_mask=mask)


@pytest.mark.parametrize("argument, kind, options", [
    ("softcap", "Gemma2", GEMMA), ("scaling", "Gemma2", GEMMA), ("sliding_window", "Mistral", {"sliding_window": 7}),
    ("s_aux", "GptOss", {**CHOSEN, "sliding_window": 7}),
])  # fmt: skip
def test_what_a_model_asks_is_seen(argument: str, kind: str, options: dict[str, Any]) -> None:
    """A call that drops one of the model's arguments is told from a right one."""
    eager, fused = models(kind, **options)

    def dropped(*values: Any, **named: Any) -> Any:
        assert named[argument] is not None
        return attention_forward(*values, **named | {argument: None})

    tokens = torch.randint(1, 64, (2, 20))
    transformers.AttentionInterface.register("xlstm_hip", dropped)
    try:
        with pytest.raises(AssertionError, match="the output: error"):
            check_call(eager, fused, input_ids=tokens)
    finally:
        register_with_transformers()
    check_call(eager, fused, input_ids=tokens)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(
    "model, options",
    [
        ("BertModel", {}),
        ("ModernBertModel", {"local_attention": 8, "global_attn_every_n_layers": 2}),  # a window to both sides
    ],
)
def test_an_encoder(model: str, options: dict[str, Any], padding: str) -> None:
    special_tokens = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    eager, fused = pair(
        model, getattr(transformers, model.replace("Model", "Config"))(**SMALL | special_tokens | options)
    )
    tokens = torch.randint(3, 64, (2, 20))
    mask = torch.ones_like(tokens)
    mask[0, slice(0, 6) if padding == "left" else slice(14, 20)] = 0
    check_call(eager, fused, mask.bool(), input_ids=tokens, attention_mask=mask)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("queries", [12, 20, 30])
def test_cross_attention(queries: int, padded: bool) -> None:
    """The encoder's mask is of the keys alone: every token of the decoder looks at them, be they fewer or more."""
    eager, fused = pair("BartModel", transformers.BartConfig(**BART))
    tokens, written = torch.randint(1, 64, (2, 20)), torch.randint(1, 64, (2, queries))
    mask = None
    if padded:
        mask = torch.ones_like(tokens)
        mask[0, 15:] = 0
    check_call(eager, fused, input_ids=tokens, attention_mask=mask, decoder_input_ids=written)


@pytest.mark.parametrize("beams", [1, 3])
def test_an_encoder_decoder_writes(beams: int) -> None:
    options = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    eager, fused = pair("BartForConditionalGeneration", transformers.BartConfig(**BART | options))
    tokens = torch.randint(3, 64, (2, 20))
    mask = torch.ones_like(tokens)
    mask[0, 15:] = 0
    arguments = {"attention_mask": mask, "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    actual, expected = (m.generate(tokens, **arguments, num_beams=beams) for m in (fused, eager))
    assert torch.equal(actual, expected)


def test_an_encoder_of_sound() -> None:
    sizes = {"max_source_positions": 50, "max_target_positions": 50, "num_mel_bins": 8, "pad_token_id": 0}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(vocab_size=64, d_model=32, init_std=0.5, **LAYERS, **sizes, **tokens)
    eager, fused = pair("WhisperModel", config)
    written = torch.randint(1, 64, (2, 12))
    check_call(eager, fused, input_features=torch.randn(2, 8, 100), decoder_input_ids=written)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind, options", [("Llama", {}), ("Mistral", {"sliding_window": 7}), ("Gemma2", GEMMA)])
def test_generation(kind: str, options: dict[str, Any], cache: str) -> None:
    eager, fused = models(kind, **options)
    tokens, mask = torch.randint(1, 64, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    arguments: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    expected = eager.generate(tokens, **arguments)
    assert torch.equal(fused.generate(tokens, **arguments, cache_implementation=cache), expected)


def test_a_prompt_read_in_parts() -> None:
    """Queries that are fewer than the keys, of rows with padding on the left."""
    eager, fused = models("Llama")
    tokens, mask = torch.randint(1, 64, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    mask[1, :3] = 0
    outs = []
    for model in (fused, eager, moved(eager)):
        cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            model(tokens[:, :12], attention_mask=mask[:, :12], past_key_values=cache)
            outs.append(model(tokens[:, 12:], attention_mask=mask, past_key_values=cache).logits)
    check_near(*outs)


def test_positions_that_start_over() -> None:
    """Sequences packed into one row, told by position_ids."""
    _, fused = models("Llama")
    tokens = torch.randint(1, 64, (1, 20))
    positions = torch.cat([torch.arange(8), torch.arange(12)])[None]
    actual = fused(tokens, position_ids=positions).logits
    expected = torch.cat([fused(tokens[:, :8]).logits, fused(tokens[:, 8:]).logits], 1)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


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
    _, fused = models("Llama")
    with pytest.raises(ValueError, match="output_attentions"):
        fused(torch.ones(1, 4, dtype=torch.long), output_attentions=True)


FOR_THE_MODEL = ["vision_feature_layer", "vision_feature_select_strategy", "logits_to_keep", "image_sizes", "labels",
                 "pixel_values", "token_type_ids", "image_grid_thw", "deepstack_visual_embeds", "seq_idx"]  # fmt: skip
FOR_ATTENTION = ["position_bias", "attention_bias", "block_indices", "indices", "sinks", "cache", "features",
                 "image_attention_mask", "input_mask", "token_index", "text_query", "segment_ids", "alibi",
                 "unheard_of"]  # fmt: skip


def test_keywords_of_the_model_are_let_through() -> None:
    """transformers hands what a model was called with down to attention; only what may concern attention is refused."""
    x = torch.randn(1, 2, 5, 8)
    base = (torch.nn.Module(), x, x, x, None)
    expected = attention_forward(*base)[0]
    for name in FOR_THE_MODEL:
        assert torch.equal(attention_forward(*base, **{name: 1})[0], expected)
    for name in FOR_ATTENTION:
        with pytest.raises(NotImplementedError, match=f"^{name}: unknown to attn_implementation='xlstm_hip'"):
            attention_forward(*base, **{name: 1})
        assert torch.equal(attention_forward(*base, **{name: None})[0], expected)
    _, fused = models("Llama")
    tokens = torch.randint(1, 64, (1, 9))
    assert torch.equal(fused(tokens, vision_feature_layer=-1).logits, fused(tokens).logits)


def test_what_models_hand_to_attention_is_not_let_through() -> None:
    """Every keyword that a model of the installed transformers names in its attention call is known here or refused."""
    known = {*inspect.signature(attention_forward).parameters, *_IDLE}
    named: set[str] = set()
    for source in (Path(transformers.__file__).parent / "models").rglob("modeling_*.py"):
        text = source.read_text()
        for call in re.finditer(r"= attention_interface\(\n(.*?)\n {8}\)", text, re.DOTALL):
            named.update(re.findall(r"^ {12}(\w+)=", call[1], re.MULTILINE))
    assert {"dropout", "scaling", "sliding_window"} <= named and named - known >= {"position_bias"}
    assert not {name for name in named - known if _is_a_models(name)}


def test_a_compiled_model() -> None:
    """In one graph, as what is asked of a mask is read while it is traced."""
    _, fused = models("Mistral", sliding_window=7)
    tokens = torch.randint(1, 64, (2, 20))
    torch._dynamo.reset()
    compiled = torch.compile(fused, backend="eager", fullgraph=True)
    with torch.no_grad():
        actual, expected = (m(tokens, use_cache=False).logits for m in (compiled, fused))
    assert torch.equal(actual, expected)
    fused.config.attention_chunk_size = 8
    base = {"inputs_embeds": torch.zeros(2, 20, 32), "attention_mask": None, "past_key_values": None}
    chunked = torch.compile(transformers.masking_utils.create_chunked_causal_mask, backend="eager")
    with pytest.raises(Exception, match="chunked_overlay"):
        chunked(fused.config, **base)
    torch._dynamo.reset()


def test_compiled_cross_attention() -> None:
    """With fewer queries than keys the mask must know that it is not causal, in a graph too."""
    _, fused = pair("BartModel", transformers.BartConfig(**BART))
    tokens, written = torch.randint(1, 64, (2, 20)), torch.randint(1, 64, (2, 12))
    torch._dynamo.reset()
    compiled = torch.compile(fused, backend="eager")
    with torch.no_grad():
        actual, expected = (
            m(input_ids=tokens, decoder_input_ids=written, use_cache=False)[0] for m in (compiled, fused)
        )
    torch._dynamo.reset()
    torch.testing.assert_close(actual, expected)


def test_masks_of_other_kinds_are_refused() -> None:
    """Each would be another result in silence: chunks, blocks that see themselves whole, rows packed in a batch."""
    _, fused = models("Llama")
    tokens = torch.randint(1, 64, (2, 20))
    positions = torch.cat([torch.arange(8), torch.arange(12)])[None].expand(2, -1)
    with pytest.raises(NotImplementedError, match="position_ids: positions that start over"):
        fused(tokens, position_ids=positions, use_cache=False)
    masks = transformers.masking_utils
    fused.config.attention_chunk_size = 8
    embedded = torch.zeros(2, 20, 32)
    base: dict[str, Any] = {"inputs_embeds": embedded, "attention_mask": None, "past_key_values": None}
    with pytest.raises(NotImplementedError, match="mask_function: a mask of chunked_overlay"):
        masks.create_chunked_causal_mask(fused.config, **base)
    fused.config.attention_chunk_size = 20
    assert masks.create_chunked_causal_mask(fused.config, **base) is None
    with pytest.raises(NotImplementedError, match="mask_function: a mask of blockwise_overlay, or_masks"):
        masks.create_causal_mask(fused.config, **base, block_sequence_ids=torch.zeros(2, 20, dtype=torch.long))
    with pytest.raises(NotImplementedError, match="mask_function: a mask of"):
        masks.create_causal_mask(fused.config, **base, and_mask_function=lambda *at: at[3] > 3)


def test_padding_that_no_call_can_tell_is_refused() -> None:
    """Under a window packed keys would stand nearer than they do; queries outside of a causal mask stand nowhere."""
    _, fused = models("Mistral", sliding_window=7)
    tokens, mask = torch.randint(1, 64, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    mask[0, 9:12] = 0
    with pytest.raises(NotImplementedError, match="attention_mask: expected no padding between tokens with sliding"):
        fused(tokens, attention_mask=mask)
    eager, fused = models("Llama")  # where the whole row is seen it is as good as any other
    check_call(eager, fused, mask.bool(), input_ids=tokens, attention_mask=mask)
    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="attention_mask: expected the 5 queries' tokens in it"):
        attention_forward(torch.nn.Module(), x, x[:, :, :3], x[:, :, :3], torch.ones(1, 3))


CASES = {
    "flash_attn": """
        import flash_attn, torch
        from flash_attn import flash_attn_func, flash_attn_with_kvcache
        from flash_attn.flash_attn_interface import flash_attn_varlen_func
        from flash_attn.flash_attn_interface import _flash_attn_forward, _flash_attn_varlen_backward, FlashAttnFunc
        import flash_attn_3, flash_attn_interface, flash_attn_3.flash_attn_interface
        assert flash_attn_interface.flash_attn_func is flash_attn_3.flash_attn_interface.flash_attn_func
        assert flash_attn_3.__version__.startswith("3.")
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
    "flash_attn's padding": """
        import torch
        from flash_attn.bert_padding import (
            index_first_axis, index_put_first_axis, pad_input, unpad_input_for_concatenated_sequences
        )
        x = torch.randn(2, 6, 4, requires_grad=True)
        lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 1, 0, 0, 0]])
        tokens, places, ends, longest = unpad_input_for_concatenated_sequences(x, lengths)
        assert ends.tolist() == [0, 2, 5, 8, 10, 11] and longest == 3 and ends.dtype == torch.int32
        assert torch.equal(tokens, torch.cat([x[0, :5], x[1]]))
        back = index_put_first_axis(tokens, places, 12)
        assert torch.equal(back.view(2, 6, 4), pad_input(tokens, places, 2, 6)) and not back[5].any()
        assert torch.equal(index_first_axis(back, places), tokens)
        back.sum().backward()
        assert x.grad.sum() == 44
        from flash_attn.bert_padding import IndexFirstAxis, IndexPutFirstAxis, index_first_axis_residual
        x.grad, rows = None, torch.tensor([0, 5])
        some, whole = index_first_axis_residual(x.flatten(0, 1), rows)
        assert torch.equal(IndexPutFirstAxis.apply(IndexFirstAxis.apply(whole, rows), rows, 12)[5], some[1])
        (some.sum() + 2 * whole.sum()).backward()
        assert x.grad.flatten(0, 1)[:, 0].tolist() == [3.0, 2, 2, 2, 2, 3] + [2.0] * 6
    """,
    "flash_attn's rotary embedding": """
        import torch
        from flash_attn import flash_attn_with_kvcache
        from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb, apply_rotary_emb_func
        from flash_attn.ops.triton.rotary import apply_rotary
        assert apply_rotary_emb_func is apply_rotary_emb
        angles = torch.rand(40, 4)
        cos, sin = angles.cos(), angles.sin()
        x, first = torch.randn(2, 9, 3, 16), torch.tensor([5, 20])
        for interleaved in (False, True):
            got = apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=first)
            # What flash_attn_with_kvcache appends is turned by the same rule.
            cache = torch.zeros(2, 40, 3, 16)
            flash_attn_with_kvcache(x, cache, cache.clone(), x, x, cos, sin, first, rotary_interleaved=interleaved)
            for b, at in enumerate(first.tolist()):
                torch.testing.assert_close(got[b], cache[b, at : at + 9])
        assert RotaryEmbedding(8)(torch.ones(1, 9, 3, 3, 16)).shape == (1, 9, 3, 3, 16)
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
        import flash_mla
        from flash_mla import flash_attn_varlen_func, flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func
        assert flash_mla.__version__ and not hasattr(flash_mla, "flash_mla_sparse_fwd")
    """,
    "what is not offered": """
        for name in ("flash_attn.layers.patch_embed", "flash_attn.modules", "flash_attention_amd.kernels",
                     "flash_attn_2_cuda", "flash_attn.cute"):
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
