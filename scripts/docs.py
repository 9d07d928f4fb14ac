# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation's site from README, docs/ and what they link to; an unknown link, anchor or picture fails.

python scripts/docs.py     into build/docs/site; needs the extra `docs`, and no network
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build/docs/source"
SITE = ROOT / "build/docs/site"
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
# Directives of mkdocstrings: a comment where the source is browsed, which would show them raw.
SITE_ONLY = re.compile(r"^<!-- on the site:\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")


def linked(page: Path) -> set[Path]:
    """The files of the repository that a page links to, pictures among them. mkdocs says which are not there."""
    links = {link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link}
    targets = {(page.parent / link).resolve() for link in links}
    return {target for target in targets if target.is_file() and target.is_relative_to(ROOT)}


def pages_and_files() -> set[Path]:
    """Every page, and whatever can be reached from it."""
    found: set[Path] = set()
    waiting = [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*.md"), ROOT / "docs/site.css"]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += linked(path) if path.suffix == ".md" else ()
    return found


def lay_out() -> None:
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in pages_and_files():
        target = SOURCE / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(SITE_ONLY.sub(r"\1", path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(path, target)


def main() -> int:
    lay_out()
    # The theme prints an opinion about another program at every build; this is its switch.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]  # --quiet would leave warnings uncounted
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    else:
        print(f"{sum(1 for _ in SITE.rglob('index.html'))} pages in {SITE.relative_to(ROOT)}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
