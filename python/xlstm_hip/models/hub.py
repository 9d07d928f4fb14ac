# SPDX-License-Identifier: Apache-2.0
"""Finds a checkpoint: in a folder, or on the Hugging Face hub, from which it is downloaded into the hub's own cache.

A folder comes first. A text that no folder has, of the form owner/name, is a model of the hub. The package
huggingface_hub does the download: it resumes one that was interrupted, and reads HF_TOKEN, HF_HOME, HF_HUB_OFFLINE and
HF_ENDPOINT.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._core.extras import optional_module
from .config_files import GENERATION_FILE, JSON_FILE, TOKENIZER_FILE, YAML_FILE
from .shards import INDEX

# The files that a tokenizer or generation reads beside the weights and config.json, named as in transformers.
TOKENIZER_FILES = (
    TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "tokenizer.model", "chat_template.jinja", GENERATION_FILE,
)  # fmt: skip
DOWNLOADED = (JSON_FILE, YAML_FILE, INDEX, "*.safetensors", *TOKENIZER_FILES)
ELSEWHERE = "*/*"  # the same weights in other formats, which many models have in folders of their own
EXAMPLE = "NX-AI/xLSTM-7b"
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)


def checkpoint_folder(
    name: str,
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    progress: bool = True,
) -> Path:
    """The folder of a checkpoint. `name` is the argument's name in errors.

    path               a folder, or a str that names a model of the hub, which is downloaded unless the cache has it
    revision           of a model of the hub: a branch, a tag or a commit. Default: main
    token              for private and gated models; default: the one of HF_TOKEN or of `hf auth login`
    cache_dir          default: the hub's own, ~/.cache/huggingface/hub
    local_files_only   takes what the cache has, and asks nobody
    progress           shows bars on stderr
    """
    folder = as_path(name, path)
    if folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision: expected none for a folder, got {revision!r} for {str(path)!r}")
        return folder
    if not isinstance(path, str) or folder.exists() or not _NAME.fullmatch(path):
        raise FileNotFoundError(
            f"{name}: expected the folder of a checkpoint, or a model of the Hugging Face hub such as {EXAMPLE!r}, "
            f"got {str(path)!r}"
        )
    hub = optional_module("huggingface_hub", f"{name}: there is no folder {path!r}, and a model of the hub")
    options = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
    with _bars(progress):
        found = _downloaded(hub, name, path, options)
    if not found.is_dir():
        raise FileNotFoundError(f"{name}: the hub's {path!r} has none of the files of a checkpoint")
    return found


def called(folder: Path) -> str:
    """The name of a checkpoint's folder for a line of progress; in the hub's cache, folders are named by commits."""
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.resolve().name


def as_path(name: str, path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise TypeError(f"{name}: expected the name of a folder, got {path!r}") from None


def _downloaded(hub: Any, name: str, model: str, options: dict[str, Any]) -> Path:
    errors, constants = (optional_module(f"huggingface_hub.{part}", name) for part in ("errors", "constants"))
    begin = f"{name}: there is no folder {model!r}, and "
    revision = options["revision"] or "main"
    try:
        files = {"allow_patterns": list(DOWNLOADED), "ignore_patterns": ELSEWHERE}
        return Path(hub.snapshot_download(model, library_name="xlstm_hip", **files, **options))
    except errors.GatedRepoError as error:
        page = f"{constants.ENDPOINT}/{model}"
        raise PermissionError(
            f"{begin}the hub's model of this name is gated: accept its terms at {page}, and give a token that may read "
            "it (hf auth login, HF_TOKEN or token=)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{begin}the hub has no model of this name, or a private one, which needs a token that may read it "
            "(hf auth login, HF_TOKEN or token=)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"revision: expected a branch, a tag or a commit of {model!r}, got {revision!r}"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        if options["local_files_only"]:
            why = "nothing is to be downloaded (local_files_only)"
        elif constants.HF_HUB_OFFLINE:
            why = "nothing is to be downloaded (HF_HUB_OFFLINE)"
        else:
            why = f"{constants.ENDPOINT} cannot be reached: {error.__cause__ or error}"
        raise FileNotFoundError(
            f"{begin}revision {revision!r} of the hub's model of this name is not in the cache as a whole; {why}"
        ) from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    except Exception as error:  # what the network raises is of another package in each version
        reason = f"{type(error).__name__}: {error}"
        raise OSError(f"{begin}the hub's model of this name could not be downloaded: {reason}") from error


@contextmanager
def _bars(enabled: bool) -> Iterator[None]:
    """Without progress bars, if they are not wanted."""
    switch = optional_module("huggingface_hub.utils", "progress")
    if enabled or switch.are_progress_bars_disabled():
        yield
        return
    switch.disable_progress_bars()
    try:
        yield
    finally:
        switch.enable_progress_bars()
