# SPDX-License-Identifier: Apache-2.0
"""What a benchmark leaves behind: its results as JSON, and beside them a table and a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Results = dict[str, Any]


def write(
    results: Results, out: Path, markdown: Callable[[Results], str], draw: Callable[[Results, Path], None]
) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    text = markdown(results)
    out.with_suffix(".md").write_text(text)
    print(text)
    draw(results, out.with_suffix(".png"))
    print(f"written: {out}, {out.with_suffix('.md').name}, {out.with_suffix('.png').name}")


def redraw(draw: Callable[[Results, Path], None]) -> None:
    """The picture once more: the command line names the JSON and, where it is not to lie beside it, the picture."""
    source = Path(sys.argv[1])
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".png")
    draw(json.loads(source.read_text()), target)
    print(target)
