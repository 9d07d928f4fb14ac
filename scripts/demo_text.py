#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the text that the demo model was trained on, out of a Debian package.

The package is sword-text-web: the World English Bible, which its copyright file declares to be in the public domain.
Its books lie in zlib blocks with an index of verses, marked up as OSIS; what is written here is their words alone, in
ASCII, a paragraph a line.

  python scripts/demo_text.py text.txt      # on Debian; fetches the package with apt-get
  python scripts/demo_text.py text.txt --package sword-text-web_426.0-1_all.deb
"""

from __future__ import annotations

import argparse
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "sword-text-web"
MODULE = "usr/share/sword/modules/texts/ztext/engWEB2015eb"
BLOCK, VERSE = struct.Struct("<III"), struct.Struct("<IIH")  # offset, size, size unpacked; block, offset, size
LEFT_OUT = re.compile(r"<(note|title|rdg|catchWord)\b.*?</\1>", re.DOTALL)
PARAGRAPH_END = re.compile(r'<div [^>]*eID[^>]*type="x-p"[^>]*/>|<l [^>]*eID[^>]*/>|</item>')
ASCII = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "-", "–": "-", "\u00a0": " "})


def verses(folder: Path) -> Iterator[str]:
    for testament in ("ot", "nt"):
        index, packed, offsets = ((folder / f"{testament}.bz{kind}").read_bytes() for kind in "szv")
        blocks = [zlib.decompress(packed[at : at + size]) for at, size, _ in BLOCK.iter_unpack(index)]
        for block, at, size in VERSE.iter_unpack(offsets):
            if size:
                yield blocks[block][at : at + size].decode()


def plain(markup: str) -> str:
    text = PARAGRAPH_END.sub("\n", LEFT_OUT.sub(" ", markup))
    text = re.sub(r"<[^>]*>", "", text).translate(ASCII).encode("ascii", "ignore").decode()
    text = re.sub(r"[ \t]+", " ", text)
    return re.sub(r" ?\n[ \n]*", "\n", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--package", type=Path, help=f"the .deb, where apt-get download {PACKAGE} is not possible")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        package = args.package
        if package is None:
            subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, check=True)
            package = next(Path(folder).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)
        text = plain(" ".join(verses(Path(folder) / MODULE)))
    args.output.write_text(text)
    print(f"{args.output}: {len(text)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
