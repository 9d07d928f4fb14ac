# SPDX-License-Identifier: Apache-2.0
"""Where a peer is faster: a table of all result files, for docs/faster_peers.md.

python benchmarks/faster_peers.py                     prints it
python benchmarks/faster_peers.py --write             writes the page
python benchmarks/faster_peers.py --results FOLDER    of the result files of another folder
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pages.faster_peers import markdown
from xlstm_hip.bench.result_files import Results

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "faster_peers.md"


def files_in(folder: Path) -> dict[str, Results]:
    """The result files of benchmarks, by name."""
    read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    files = {name: results for name, results in read.items() if isinstance(results, dict) and "benchmark" in results}
    if not files:
        raise ValueError(f"--results: expected a folder with result files, got {str(folder)!r}")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    args = parser.parse_args()
    try:
        text = markdown(files_in(args.results))
    except ValueError as error:
        parser.error(str(error))
    if args.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
