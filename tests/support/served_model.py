# SPDX-License-Identifier: Apache-2.0
"""`xlstm-hip serve` with the demo model, as a process of its own on a free port."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

from support.serving import until
from support.terminal import command

DEMO = Path(__file__).parents[2] / "models" / "demo"
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }} said: {{ m.content }}\n{% endfor %}And he said"


class ServedModel:
    """
    log     the lines of stderr so far
    """

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url, self.log = process, url, ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line

    def ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/ready").status_code == 200
        return False

    def ended(self, seconds: float = 30.0) -> int:
        """Its exit code, when it has ended by itself."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code


@contextlib.contextmanager
def served_model(folder: Path, *options: object, port: int = 0) -> Iterator[ServedModel]:
    """With a chat template, which the demo model has not, and JSON lines as its log."""
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    settings = ("--template", template, "--log-format", "json", "--dtype", "float32", "--threads", 1)
    process = command("serve", DEMO, "--port", port, *settings, *options)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://"), process.communicate(timeout=20)
        served = ServedModel(process, line.removeprefix("listening on ").strip())
        until(lambda: served.ready() or process.poll() is not None, 60)
        assert process.poll() is None, served.log
        yield served
    finally:
        process.kill()
        process.wait()
