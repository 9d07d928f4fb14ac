# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own, and the end of the pipe to it that its owner holds.

What ends the process, kill -9, a crash of a driver or an engine that has failed, is seen as the end of the pipe. One
that only hangs says nothing, or makes no steps: `hangs` says so. A replica whose owner ends goes with it.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from .engine import Engine, EngineFailed
from .metrics import Snapshot
from .params import Output, Request
from .sending import sendable_error, sendable_output

logger = logging.getLogger("xlstm_hip")
SNAPSHOT_SECONDS = 0.25
# Looks by the owner, about one a second, after which a replica hangs. By looks and not by the clock: while the owner
# itself is stopped, or busy, nobody is to blame.
SILENT_LOOKS = 30  # without a word, of which there are some a second
STALLED_LOOKS = 600  # without a step: the first ones compile and capture
LOADING_LOOKS = 3600
ENGINE_FAILED = 70  # exit code: an internal software error, as sysexits.h has it
SUBMITTING = 4  # threads: a structure's compilation may take seconds
COMMAND = "from xlstm_hip.serving.replica import main; main()"


class ReplicaDied(RuntimeError):
    """The process ended, and with it what it was asked."""


class Replica:
    """
    load         called in the process with the replica's number; returns its engine, started. It is pickled
    on_outputs   called with the replica and outputs that came together, from a thread of its own
    on_ready     called with the replica when its engine runs, from the same thread
    on_end       called last, with the replica and its exit code (negative: the signal)
    """

    def __init__(
        self,
        load: Callable[[int], Engine],
        number: int,
        on_outputs: Callable[[Replica, list[Output]], None],
        on_ready: Callable[[Replica], None],
        on_end: Callable[[Replica, int], None],
    ) -> None:
        self.number = number
        self.ready: Future[None] = Future()  # or why it could not be loaded
        self.snapshot: Snapshot | None = None  # some tenths of a second old
        self._silent = self._stalled = self._loading = 0  # looks
        self._on_outputs, self._on_ready, self._on_end = on_outputs, on_ready, on_end
        self._asked: dict[int, Future[None]] = {}
        self._count, self._gone = 0, False
        self._lock = threading.Lock()  # of these
        # A process that hangs does not read, and nobody may wait for it.
        self._letters: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        ours, its = socket.socketpair()
        with its:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._pipe = Connection(ours.detach())
        self.ended = threading.Event()
        self._letters.put((load, number))
        self._writer = threading.Thread(target=self._write, name=f"xlstm_hip-to-replica-{number}", daemon=True)
        self._writer.start()
        self.reader = threading.Thread(target=self._read, name=f"xlstm_hip-replica-{number}", daemon=True)
        self.reader.start()

    @property
    def is_up(self) -> bool:
        return self.ready.done() and self.ready.exception() is None and not self._gone

    def hangs(self) -> str:
        """A look: why it should be ended, or nothing."""
        if self._gone:
            return ""
        if not self.ready.done():
            self._loading += 1
            return "it is still being loaded" if self._loading > LOADING_LOOKS else ""
        self._silent += 1
        self._stalled += 1
        if self._silent > SILENT_LOOKS:
            return "it says nothing"
        return "it makes no step" if self._stalled > STALLED_LOOKS else ""

    def submit(self, request: Request, on_accepted: Callable[[], None]) -> None:
        """As Engine.submit, or ReplicaDied. on_accepted is called before any of the request's outputs comes."""
        answer: Future[None] = Future()
        answer.add_done_callback(lambda answer: on_accepted() if answer.exception() is None else None)
        with self._lock:
            if self._gone:
                raise ReplicaDied(f"replica {self.number} has ended")
            self._count += 1
            ticket = self._count
            self._asked[ticket] = answer
        self._letters.put(("submit", ticket, request))
        answer.result()

    def cancel(self, id: str) -> None:
        self._letters.put(("cancel", id))

    def close(self) -> None:
        """Has the engine closed, requests cancelled, and the process end, which on_end tells."""
        self._letters.put(("close",))

    def _write(self) -> None:
        while (letter := self._letters.get()) is not None:
            try:
                self._pipe.send(letter)
            except OSError:  # the process has ended, which the reading thread sees
                return
            except Exception as error:  # a request that cannot be pickled
                if letter[0] == "submit":
                    self._answer(letter[1], error)

    def _answer(self, ticket: int, error: Exception | None) -> None:
        with self._lock:
            answer = self._asked.pop(ticket, None)
        if answer is None:
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    def _read(self) -> None:
        try:
            while True:
                kind, *rest = self._pipe.recv()
                self._silent = 0
                if kind == "outputs":
                    self._on_outputs(self, *rest)
                elif kind == "answer":
                    self._answer(*rest)
                elif kind == "snapshot":
                    before, (self.snapshot,) = self.snapshot, rest
                    has_work = self.snapshot.running or self.snapshot.waiting
                    if before is None or self.snapshot.steps != before.steps or not has_work:
                        self._stalled = 0
                elif rest[0] is None:
                    self._stalled = 0
                    self.ready.set_result(None)
                    self._on_ready(self)
                else:
                    self.ready.set_exception(rest[0])
        except (EOFError, OSError):
            pass
        except Exception:
            logger.exception("replica %d: what it sent was not understood, and it is ended", self.number)
        self.process.kill()  # a thread of it may go on without the pipe
        code = self.process.wait()
        died = ReplicaDied(f"replica {self.number} has ended ({exit_text(code)})")
        if not self.ready.done():
            self.ready.set_exception(died)
        with self._lock:
            self._gone, asked = True, list(self._asked)
        for ticket in asked:
            self._answer(ticket, died)
        self._letters.put(None)
        self._writer.join()
        self._pipe.close()
        try:
            self._on_end(self, code)
        finally:
            self.ended.set()


def exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


# ---- in the process


def main() -> None:
    """With the number of the pipe's file as the argument."""
    for one in (signal.SIGINT, signal.SIGTERM):  # its owner gets them too, and closes it
        signal.signal(one, signal.SIG_IGN)
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)  # or a child of this process would hold it open
    threading.Thread(target=_end_with_owner, args=(pipe.fileno(),), name="xlstm_hip-owner", daemon=True).start()
    try:
        load, number = pipe.recv()
        engine = load(number)
    except BaseException as error:
        pipe.send(("ready", sendable_error(error)))
        return
    outbox = _Outbox(pipe, engine)
    outbox.put("ready", None)
    threads = ThreadPoolExecutor(SUBMITTING, "xlstm_hip-submit")

    def submit(ticket: int, request: Request) -> None:
        error: Exception | None = None
        try:
            engine.submit(request, outbox.hold(ticket))
        except Exception as failed:
            error = failed
        outbox.answer(ticket, error)

    def close() -> None:
        engine.close(drain=False)
        outbox.close()
        os._exit(0)

    while True:
        try:
            kind, *rest = pipe.recv()
        except (EOFError, OSError):  # nobody is there to answer
            os._exit(0)
        if kind == "submit":
            threads.submit(submit, *rest)
        elif kind == "cancel":
            engine.cancel(*rest)
        else:
            threading.Thread(target=close, name="xlstm_hip-close", daemon=True).start()


def _end_with_owner(pipe: int) -> None:
    """Also while a model is loaded, and nothing is read from the pipe."""
    poll = select.poll()
    poll.register(pipe, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


class _Outbox:
    """Writes to the pipe from a thread of its own, what came together in one message, so that no step waits for it."""

    def __init__(self, pipe: Connection, engine: Engine) -> None:
        self._pipe, self._engine = pipe, engine
        self._letters: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._held: dict[int, list[Output]] = {}  # by ticket: outputs of requests whose answer was not sent
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write, name="xlstm_hip-outbox", daemon=True)
        self._thread.start()

    def put(self, *letter: Any) -> None:
        self._letters.put(letter)

    def hold(self, ticket: int) -> Callable[[Output], None]:
        """An on_output whose outputs wait for `answer`, which they may not overtake."""
        self._held[ticket] = []

        def on_output(output: Output) -> None:
            if ticket in self._held:
                with self._lock:
                    if ticket in self._held:
                        self._held[ticket].append(output)
                        return
            self.put("output", output)

        return on_output

    def answer(self, ticket: int, error: Exception | None) -> None:
        with self._lock:
            self.put("answer", ticket, None if error is None else sendable_error(error))
            for output in self._held[ticket]:
                self.put("output", output)
            del self._held[ticket]  # last: from now on outputs do not ask for the lock

    def close(self) -> None:
        self._letters.put(None)
        self._thread.join()

    def _write(self) -> None:
        sent = 0.0
        try:
            while True:
                letters = self._wait()
                outputs: list[Output] = []
                for letter in letters:
                    if letter is not None and letter[0] == "output":
                        outputs.append(letter[1])
                        continue
                    self._send_outputs(outputs)
                    if letter is None:
                        self._pipe.send(("snapshot", self._engine.metrics()))
                        return
                    self._pipe.send(letter)
                self._send_outputs(outputs)
                if time.monotonic() - sent > SNAPSHOT_SECONDS:
                    sent = time.monotonic()
                    self._pipe.send(("snapshot", self._engine.metrics()))
        except OSError:
            os._exit(0)  # the owner has ended

    def _wait(self) -> list[tuple[Any, ...] | None]:
        """All letters that are there, of which there is one unless time is up."""
        letters: list[tuple[Any, ...] | None] = []
        try:
            letters.append(self._letters.get(timeout=SNAPSHOT_SECONDS))
            while True:
                letters.append(self._letters.get_nowait())
        except queue.Empty:
            return letters

    def _send_outputs(self, outputs: list[Output]) -> None:
        alive = [output for output in outputs if not isinstance(output.error, EngineFailed)]
        if alive:
            self._pipe.send(("outputs", list(map(sendable_output, alive))))
        if len(alive) < len(outputs):  # the requests can go on elsewhere, which the owner sees to
            os._exit(ENGINE_FAILED)
        outputs.clear()
