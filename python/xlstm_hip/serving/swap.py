# SPDX-License-Identifier: Apache-2.0
"""States that left their slot: of preempted requests in host memory, of sessions there or in files.

A session is a conversation that pauses. Its state goes to host memory when an answer ends; where that is full, the
session unused for longest goes to a file, written and read by a thread of its own so that no step waits for a disk. The
files outlast the process. A state that cannot be written or read is logged and counted, and concerns its session alone:
its next request reads its text again, with the same answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from ..models.language_model import ServedModel
from ..models.states import load_state, model_facts, save_state
from .prefix_cache import as_array
from .slots import KeptState

logger = logging.getLogger("xlstm_hip")
SUFFIX = ".state"
WRITING_SECONDS = 600.0  # after which nobody writes a file any more
CPU = torch.device("cpu")
MOST_WRITING = 8  # states that may wait for the disk, if as many bytes as host_bytes are fewer


class SwapStore:
    """
    host_bytes    of states in host memory at most. Those being written to files are beyond it until they are, as many
                  bytes again or MOST_WRITING states; a disk that is slower than that loses sessions
    folder        for the files of sessions; None: what host memory has no room for is dropped
    most_loaded   states that are read from files for requests that wait, beyond host_bytes, too
    kept_dtype    of the C of sessions (narrow.py)
    on_loaded     called from the other thread with a session whose file was read, or could not be
    """

    def __init__(
        self,
        model: ServedModel,
        host_bytes: int,
        folder: str | os.PathLike[str] | None,
        folder_bytes: int,
        most_loaded: int,
        kept_dtype: str | None,
        on_loaded: Callable[[str], None],
    ) -> None:
        self._model, self._limit, self._folder_limit, self._on_loaded = model, host_bytes, folder_bytes, on_loaded
        self._most_loaded = most_loaded
        self._held: dict[str, KeptState] = {}  # of preempted requests
        self._sessions: OrderedDict[str, KeptState] = OrderedDict()  # the used last at the end
        self._writing: dict[str, KeptState] = {}
        self._asked: dict[str, None] = {}  # sessions whose file is to be read, in the order in which they came
        self._loading: set[str] = set()
        self._loaded: dict[str, KeptState] = {}  # until the request that asked has begun
        self._lock = threading.Lock()  # of all of these, and the counts
        self.swapped_out = self.swapped_in = self.failures = 0
        self._folder: Path | None = None
        self._files: OrderedDict[str, int] = OrderedDict()  # name and size; the written last at the end
        if folder is not None:
            self._folder = Path(folder)
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for file in self._folder.glob(f".*{SUFFIX}.*"):  # of a process that was killed
                if time.time() - file.stat().st_mtime > WRITING_SECONDS:
                    file.unlink(missing_ok=True)
            found = [(file.stat().st_mtime, file.name, file.stat().st_size) for file in self._folder.glob(f"*{SUFFIX}")]
            self._files.update((name, size) for _, name, size in sorted(found))
            self._facts = model_facts(model) | {"kept_dtype": kept_dtype}
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="xlstm_hip-swap")

    @property
    def host_bytes(self) -> int:
        with self._lock:
            kept = (*self._held.values(), *self._sessions.values(), *self._writing.values(), *self._loaded.values())
            return sum({id(state): state.nbytes for state in kept}.values())

    @property
    def folder_bytes(self) -> int:
        with self._lock:
            return sum(self._files.values())

    # ---- preempted requests

    def room_for(self, nbytes: int) -> int:
        """How many states of so many bytes can be held, those of sessions making room."""
        with self._lock:
            return max(0, self._limit - sum(state.nbytes for state in self._held.values())) // nbytes

    def hold(self, id: str, state: KeptState) -> None:
        """Keeps the state of a preempted request until release."""
        with self._lock:
            self._held[id] = state
            self.swapped_out += 1
        self._make_room()

    def release(self, id: str) -> KeptState | None:
        with self._lock:
            state = self._held.pop(id, None)
            self.swapped_in += state is not None
        return state

    def drop(self, id: str) -> bool:
        """Whether the request's state was held; it no longer is."""
        with self._lock:
            return self._held.pop(id, None) is not None

    # ---- sessions

    def keep(self, session: str, state: KeptState) -> None:
        """The state, a copy on the host, becomes that of the session."""
        with self._lock:
            self._sessions[session] = state
            self._sessions.move_to_end(session)
            self._loaded.pop(session, None)
            self._load_next()
            self.swapped_out += 1
        self._make_room()

    def ready(self, session: str) -> bool:
        """Whether find has an answer now. If not, the session's file is being read, and on_loaded follows."""
        with self._lock:
            if self._folder is None or session in self._sessions or session in self._loaded:
                return True
            if session in self._writing:  # which may be over before find is called
                self._loaded[session] = self._writing[session]
                return True
            if session not in self._asked and session not in self._loading:
                if self._name(session) not in self._files:
                    return True
                self._asked[session] = None
                self._load_next()
        return False

    def _load_next(self) -> None:
        """Under the lock: has files read while there is room for what is in them."""
        while self._asked and len(self._loading) + len(self._loaded) < self._most_loaded:
            session = next(iter(self._asked))
            del self._asked[session]
            self._loading.add(session)
            self._thread.submit(self._load, session)

    def find(self, session: str) -> KeptState | None:
        """The session's state, which stays what it is until the next one is kept."""
        with self._lock:
            loaded = self._loaded.pop(session, None)
            if loaded is not None:
                self._sessions[session] = loaded
                self._load_next()
            state = self._sessions.get(session) or self._writing.get(session)
            if session in self._sessions:
                self._sessions.move_to_end(session)
            self.swapped_in += state is not None
        if loaded is not None:
            self._make_room()
        return state

    def unasked(self, session: str) -> None:
        """No request waits for it any more: what was read for those that did, or is being read, is not kept."""
        with self._lock:
            self._asked.pop(session, None)
            self._loading.discard(session)
            self._loaded.pop(session, None)
            self._load_next()

    def close(self) -> None:
        """Writes the sessions in host memory to files, if there is a folder, and ends the thread."""
        if self._folder is None:
            return
        with self._lock:
            left = list(self._sessions)
        for session in left:
            self._write_in_background(session)
        self._thread.shutdown(wait=True)

    # ---- making room

    def _make_room(self) -> None:
        while True:
            with self._lock:
                size = sum(state.nbytes for state in (*self._held.values(), *self._sessions.values()))
                if size <= self._limit or not self._sessions:
                    return
                oldest = next(iter(self._sessions))
                writing = sum(state.nbytes for state in self._writing.values())
                is_slow = len(self._writing) >= MOST_WRITING and writing > self._limit
                if self._folder is None or is_slow:
                    del self._sessions[oldest]
                    self.failures += 1
                    why = "swap_folder: too slow, and swap_bytes" if is_slow else "swap_bytes"
                    logger.warning("%s: no room for the state of a session, which will be read again", why)
                    continue
            self._write_in_background(oldest)

    def _write_in_background(self, session: str) -> None:
        with self._lock:
            self._writing[session] = state = self._sessions.pop(session)
        self._thread.submit(self._write, session, state)

    def _name(self, session: str) -> str:
        return hashlib.sha256(session.encode()).hexdigest()[:32] + SUFFIX

    # ---- in the other thread

    def _write(self, session: str, state: KeptState) -> None:
        assert self._folder is not None
        file = self._folder / self._name(session)
        try:
            if state.copied is not None:
                state.copied.synchronize()
            save_state(
                file, self._model, state.state, logits=state.logits, tokens_read=len(state.tokens),
                notes={"session": session, "tokens": state.tokens.tolist()}, facts=self._facts,
                private=True,
            )  # fmt: skip
            size = file.stat().st_size
        except Exception as error:  # a disk may be full: this session's affair alone
            logger.warning("swap_folder: the state of a session was not written and will be read again: %s", error)
            with self._lock:
                self.failures += 1
                if self._writing.get(session) is state:
                    del self._writing[session]
                self._forget_file(file)  # an older state of the session, which its next request could not use
            return
        with self._lock:
            if self._writing.get(session) is state:
                del self._writing[session]
            self._files[file.name] = size
            self._files.move_to_end(file.name)
            while sum(self._files.values()) > self._folder_limit:
                self._forget_file(self._folder / next(iter(self._files)))

    def _load(self, session: str) -> None:
        assert self._folder is not None
        file = self._folder / self._name(session)
        with self._lock:
            if session not in self._loading:  # nobody waits for it any more
                return
        try:
            saved = load_state(file, self._model, self._facts, CPU)
            if saved.notes.get("session") != session:
                raise ValueError(f"{file}: expected the state of another session")
            state = KeptState(as_array(saved.notes["tokens"]), saved.state, saved.logits)
            with self._lock:
                if session in self._loading and session not in self._sessions:
                    self._loaded[session] = state
        except Exception as error:  # damaged, of other weights, or removed
            logger.warning("swap_folder: the state of a session was not read, its text will be: %s", error)
            with self._lock:
                self.failures += 1
                self._forget_file(file)
        finally:
            with self._lock:
                self._loading.discard(session)
                self._load_next()
            self._on_loaded(session)

    def _forget_file(self, file: Path) -> None:
        self._files.pop(file.name, None)
        with contextlib.suppress(OSError):
            file.unlink()
