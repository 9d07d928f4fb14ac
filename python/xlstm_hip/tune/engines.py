# SPDX-License-Identifier: Apache-2.0
"""Engines that run trials: in a process on this machine, or on a Ray cluster. A trial that crashes does not end the
run."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from .._core.checks import one_of
from .._core.extras import optional_module
from .._core.plans import Plan
from .measure import FAILED, Measure, Pace, Result, measure
from .problem import Problem

ENGINES = ("local", "ray")
STICKY = ("CUDA error", "HIP error", "AcceleratorError")  # after which a process's GPU is lost to it


class Engine(Protocol):
    def run(self, problem: Problem, plans: dict[int, Plan], pace: Pace) -> Iterable[tuple[int, Result]]:
        """Trials by number, each as soon as it is done."""

    def close(self) -> None: ...


def make_engine(name: str, threads: int, trial_seconds: float, address: str | None = None) -> Engine:
    one_of("engine", name, ENGINES)
    if name == "ray":
        return RayEngine(threads, trial_seconds, address)
    if address is not None:
        raise ValueError(f"ray_address: expected none with engine 'local', got {address!r}")
    return LocalEngine(threads, trial_seconds)


class LocalEngine:
    """One trial after the other, in a process that is started anew when a trial ends it or lasts too long."""

    def __init__(self, threads: int, trial_seconds: float, measured_by: Measure = measure) -> None:
        self._threads, self._seconds, self._measure = threads, trial_seconds, measured_by
        self._process: Any = None
        self._pipe: Any = None

    def run(self, problem: Problem, plans: dict[int, Plan], pace: Pace) -> Iterator[tuple[int, Result]]:
        for number, plan in plans.items():
            yield number, self._trial(problem, plan, pace)

    def _trial(self, problem: Problem, plan: Plan, pace: Pace) -> Result:
        if self._process is None:
            self._start()
        try:
            self._pipe.send((problem, plan, pace, self._threads))
            if not self._pipe.poll(self._seconds):
                self.close()
                return Result(FAILED, f"no result after {self._seconds:g} seconds")
            result = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.close()
            return Result(FAILED, f"the process ended with code {code}")
        except KeyboardInterrupt:
            self.close()
            raise
        if any(text in result.error for text in STICKY):
            self.close()
        return result

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_pipe, self._measure), daemon=True)
        self._process.start()
        child_pipe.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = self._pipe = None


def _serve(pipe: Any, measured_by: Measure) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that keeps the run
    while True:
        try:
            work = pipe.recv()
        except EOFError:
            return
        pipe.send(measured_by(*work))


class RayEngine:
    """As many trials at once as the cluster has room for: a trial takes `threads` CPUs, on a GPU also a whole one.

    A running Ray is used, or the cluster at `address`, else one is started on this machine and ended by close().
    xlstm_hip must be installed on every node.
    """

    def __init__(
        self, threads: int, trial_seconds: float, address: str | None = None, measured_by: Measure = measure
    ) -> None:
        ray = optional_module("ray", "engine: 'ray'")
        self._ray, self._threads, self._seconds, self._measure = ray, threads, trial_seconds, measured_by
        self._started = not ray.is_initialized()
        if self._started:
            options = {"address": address} if address else {"include_dashboard": False}
            try:
                ray.init(log_to_driver=False, **options)
            except Exception as error:  # Ray has many kinds for it
                if address is None:
                    raise
                reason = " ".join(str(error).split())
                raise ConnectionError(f"ray_address: expected a Ray cluster, got {address!r}: {reason}") from error

    def run(self, problem: Problem, plans: dict[int, Plan], pace: Pace) -> Iterator[tuple[int, Result]]:
        ray = self._ray
        if problem.on.index is not None:
            raise ValueError(
                f"device: expected no number with engine 'ray', which deals out GPUs, got {problem.device!r}"
            )
        gpus = 1 if problem.on.type == "cuda" else 0
        trial = ray.remote(num_cpus=self._threads, num_gpus=gpus, max_retries=0)(self._measure)
        waiting = {trial.remote(problem, plan, pace, self._threads): number for number, plan in plans.items()}
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), num_returns=1, timeout=self._seconds)
                if not done:  # nothing ended in the time that one trial may take
                    for reference, number in waiting.items():
                        ray.cancel(reference, force=True)
                        yield number, Result(FAILED, f"no trial of the cluster ended for {self._seconds:g} seconds")
                    return
                number = waiting.pop(done[0])
                try:
                    result = ray.get(done[0])
                except ray.exceptions.RayError as error:
                    result = Result(FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])
                yield number, result
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)

    def close(self) -> None:
        if self._started and self._ray.is_initialized():
            self._ray.shutdown()
