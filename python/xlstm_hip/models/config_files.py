# SPDX-License-Identifier: Apache-2.0
"""config.json of transformers and config.yaml of xlstm_large, converted to xLSTMLargeConfig and back.

Kernel names are not taken over: they name another package's kernels, and the best of this package depends on the
device. Only the input gate is taken from them, because no other field stores it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..mlstm.registry import LAYER_KINDS, kernel_info, with_gate
from .config import KERNEL_OPTIONS, KERNELS, xLSTMLargeConfig
from .mapping import CheckpointError
from .quantize import Scheme

JSON_FILE, YAML_FILE = "config.json", "config.yaml"
GENERATION_FILE, TOKENIZER_FILE = "generation_config.json", "tokenizer.json"
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
QUANTIZATION, METHOD = "quantization_config", "xlstm_hip"  # a field of config.json, and whose method it is
# transformers warns of a method that it does not know, and makes the weights up; a type that is new to it it refuses.
# transformers knows the first alone, and so refuses weights that it would misread.
MODEL_TYPE, QUANTISED_TYPE, FUSED_TYPE = "xlstm", "xlstm_hip_quantised", "xlstm_hip_fused"
FIELDS = tuple(field.name for field in dataclasses.fields(xLSTMLargeConfig) if field.name not in KERNEL_OPTIONS)
# transformers' defaults, where its config.json leaves a field out, and its names for two of ours.
HF_DEFAULTS = {
    "embedding_dim": 4096, "num_blocks": 32, "num_heads": 8, "vocab_size": 50304,
    "ffn_proj_factor": 2.667,
}  # fmt: skip
HF_NAMES = {"hidden_size": "embedding_dim", "num_hidden_layers": "num_blocks"}
# Without the xlstm package transformers accepts no other kernel names.
HF_KERNELS = {
    "chunkwise_kernel": "chunkwise--native_autograd",
    "sequence_kernel": "native_sequence__native",
    "step_kernel": "native",
}
SIGMOID_KERNEL = "chunkwise--triton_xl_chunk_siging"  # by which xlstm_large's configuration says that gate
INFERENCE = {"mode": "inference", "return_last_states": True}
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of special tokens; None if there is none. bos goes before every prompt of a model trained with it."""

    bos: int | None = 0
    eos: tuple[int, ...] = (2,)
    pad: int | None = 1


def read_config(folder: Path, with_gate_of_kernel: bool = True) -> tuple[xLSTMLargeConfig, SpecialTokens]:
    """The checkpoint's configuration for inference, with our default kernels of its gate, and its special tokens.

    Without with_gate_of_kernel, for a caller who names a kernel, its own may be one that nobody knows here.
    """
    file, fields, tokens = stored_config(folder)
    config = _for_inference(file, fields, with_gate_of_kernel)
    try:
        _check_ids(tokens, config.vocab_size)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from None
    return config, tokens


def config_of_transformers(source: str, raw: dict[str, Any]) -> xLSTMLargeConfig:
    """read_config's, of the fields of transformers' xLSTMConfig; source is what an error names."""
    return _for_inference(source, _fields_from_json(source, raw), with_gate_of_kernel=True)


def _for_inference(source: Path | str, fields: dict[str, Any], with_gate_of_kernel: bool) -> xLSTMLargeConfig:
    training_fields = {name: value for name, value in fields.items() if name not in KERNELS}
    kernel = fields.get("chunkwise_kernel")
    try:
        config = xLSTMLargeConfig(**training_fields | INFERENCE)
        if with_gate_of_kernel and kernel is not None:
            config.chunkwise_kernel = _with_gate_of(kernel, config.chunkwise_kernel)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{source}: {error}") from None
    return config


def stored_config(folder: Path) -> tuple[Path, dict[str, Any], SpecialTokens]:
    """The file that describes the weights, the fields of xLSTMLargeConfig in it, and its special tokens."""
    if (folder / JSON_FILE).exists():
        return (folder / JSON_FILE, *_from_json(folder / JSON_FILE))
    if (folder / YAML_FILE).exists():
        return folder / YAML_FILE, _from_yaml(folder / YAML_FILE), SpecialTokens()
    raise CheckpointError(f"{folder}: expected {JSON_FILE} or {YAML_FILE}, found neither")


def _ids(tokens: SpecialTokens) -> list[tuple[str, int | None]]:
    """Special tokens by config.json's names."""
    eos = [("eos_token_id", token) for token in tokens.eos]
    return [("bos_token_id", tokens.bos), *eos, ("pad_token_id", tokens.pad)]


def _check_ids(tokens: SpecialTokens, vocab_size: int) -> None:
    for name, token in _ids(tokens):
        if token is not None and not 0 <= token < vocab_size:
            raise ValueError(f"{name}: expected a token id from 0 to {vocab_size - 1}, got {token}")


def other_config(folder: Path, scheme: str) -> str | None:
    """The config file of the other scheme that would still describe the weights after this scheme's are written.

    An unrelated config.yaml is kept. An unrelated config.json is an error, because readers would take it.
    """
    if scheme == "xlstm_large":
        if not (folder / JSON_FILE).exists():
            return None
        _from_json(folder / JSON_FILE)
        return JSON_FILE
    try:
        return YAML_FILE if "embedding_dim" in _from_yaml(folder / YAML_FILE) else None
    except (CheckpointError, OSError):
        return None


def _with_gate_of(model_kernel: Any, kernel: str) -> str:
    if not isinstance(model_kernel, str):
        raise TypeError(f"chunkwise_kernel: expected a kernel's name, got {model_kernel!r}")
    try:
        gate = kernel_info(model_kernel, LAYER_KINDS).gate
    except ValueError as error:
        raise ValueError(f"chunkwise_kernel: {error}") from None
    return with_gate(kernel_info(kernel, LAYER_KINDS), gate).name


def json_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: expected a JSON object, got {type(value).__name__}")
    return value


def _fields_from_json(source: Path | str, raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of xLSTMLargeConfig in those of a config.json."""
    if raw.get("model_type") not in (MODEL_TYPE, QUANTISED_TYPE, FUSED_TYPE):
        raise CheckpointError(f"{source}: expected model_type {MODEL_TYPE!r}, got {raw.get('model_type')!r}")
    if raw.get("tie_word_embeddings"):
        raise CheckpointError(f"{source}: tie_word_embeddings: expected false, as in xLSTM-7B, got true")
    fields = dict(HF_DEFAULTS)
    for hf_name, field in HF_NAMES.items():
        both = (raw.get(hf_name), raw.get(field))
        if None not in both and both[0] != both[1]:
            raise CheckpointError(f"{source}: {hf_name}: expected that of {field}, {both[1]}, got {both[0]}")
    fields |= {field: raw[hf_name] for hf_name, field in HF_NAMES.items() if raw.get(hf_name) is not None}
    other_names = HF_NAMES.values()  # may be null; elsewhere null says something, or is a mistake
    fields |= {x: raw[x] for x in FIELDS if x in raw and not (raw[x] is None and x in other_names)}
    fields["add_out_norm"] = True  # transformers' model always has it
    return fields


def _from_json(file: Path) -> tuple[dict[str, Any], SpecialTokens]:
    raw = json_object(file)
    fields = _fields_from_json(file, raw)
    generation = file.with_name(GENERATION_FILE)
    if generation.exists():  # transformers' generate takes its special tokens from here
        stored = json_object(generation)
        raw |= {name: stored[name] for name in SPECIAL_TOKENS if stored.get(name) is not None}
    eos = raw.get("eos_token_id", 2)
    eos = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    tokens = SpecialTokens(raw.get("bos_token_id", 0), eos, raw.get("pad_token_id", 1))
    for name, token in _ids(tokens):
        if type(token) is not int and (token is not None or name == "eos_token_id"):
            raise CheckpointError(f"{file}: {name}: expected a token id or null, got {token!r}")
    return fields, tokens


def _from_yaml(file: Path) -> dict[str, Any]:
    raw = _read_yaml(file)
    unknown = sorted(raw.keys() - set(FIELDS))
    if unknown:
        raise CheckpointError(f"{file}: unknown fields: {', '.join(unknown)}")
    return raw


def _read_yaml(file: Path) -> dict[str, Any]:
    """Reads the flat mapping that xlstm_large writes. Nested YAML is an error."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: no text in UTF-8: {error}") from None
    fields: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        text = line.split(" #")[0].rstrip()
        if not text or text.startswith(("#", "---")):
            continue
        match = re.fullmatch(r"(\w+):(?:\s+(.*))?", text)
        if match is None:
            raise CheckpointError(f"{file}: line {number}: expected `name: value`, got {line!r}")
        if match[1] in fields:
            raise CheckpointError(f"{file}: {match[1]} appears twice")
        fields[match[1]] = _scalar((match[2] or "").strip())
    return fields


def _scalar(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def read_scheme(folder: Path) -> Scheme | None:
    """The quantisation scheme in config.json, or None."""
    file = folder / JSON_FILE
    raw = json_object(file).get(QUANTIZATION) if file.exists() else None
    if raw is None:
        return None
    if not isinstance(raw, dict) or raw.get("quant_method") != METHOD:
        raise CheckpointError(f"{file}: {QUANTIZATION}: expected quant_method {METHOD!r}, got {raw!r}")
    fields = {name: value for name, value in raw.items() if name != "quant_method"}
    try:
        return Scheme(**fields | {"skip": tuple(fields.get("skip", ()))})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: {QUANTIZATION}: {error}") from None


def write_json(
    folder: Path, config: xLSTMLargeConfig, tokens: SpecialTokens, dtype: str, scheme: Scheme | None = None
) -> None:
    fields = {name: getattr(config, name) for name in FIELDS} | HF_KERNELS
    fields |= {hf_name: fields[field] for hf_name, field in HF_NAMES.items()}
    fields |= INFERENCE  # what its generate needs
    eos = tokens.eos[0] if len(tokens.eos) == 1 else list(tokens.eos) or None
    fields |= {"bos_token_id": tokens.bos, "eos_token_id": eos, "pad_token_id": tokens.pad}
    fields |= {"model_type": MODEL_TYPE, "architectures": ["xLSTMForCausalLM"], "dtype": dtype}
    if config.weight_mode == "fused":
        fields |= {"model_type": FUSED_TYPE, "architectures": ["xLSTMLarge"]}
    if scheme is not None:
        fields[QUANTIZATION] = {"quant_method": METHOD, **dataclasses.asdict(scheme)}
        fields |= {"model_type": QUANTISED_TYPE, "architectures": ["xLSTMLarge"]}
    (folder / JSON_FILE).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", "utf-8")


def write_yaml(folder: Path, config: xLSTMLargeConfig) -> None:
    fields = {name: getattr(config, name) for name in FIELDS if name not in KERNELS}
    if config.gate == "sigmoid":
        fields["chunkwise_kernel"] = SIGMOID_KERNEL
    lines = [f"{name}: {_yaml_text(value)}" for name, value in fields.items()]
    (folder / YAML_FILE).write_text("\n".join(lines) + "\n", "utf-8")


def _yaml_text(value: Any) -> str:
    text = json.dumps(value)
    # YAML 1.1 takes 1e-06 for a word: its floats have a point.
    return re.sub(r"^(-?\d+)e", r"\1.0e", text) if isinstance(value, float) else text
