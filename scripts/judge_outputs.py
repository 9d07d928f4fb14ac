#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges the texts of scripts/save_outputs_for_trials.py, or of a run's folder outputs/: avg_logprob, perplexity,
distinct-2 and distinct-3 of each trial beside the shipped plan. Exit code 3 if a trial is refused.

  python scripts/judge_outputs.py runs/cpu_20261126-120000_mlstm_chunkwise/outputs
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from xlstm_hip.bench.table import lines_of
from xlstm_hip.models import load_pretrained
from xlstm_hip.tune import judge_outputs

DEMO = Path(__file__).resolve().parents[1] / "models/demo"
METRICS = ("avg_logprob", "perplexity", "distinct-2", "distinct-3", "read_logprob")
REFUSED = 3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("outputs", type=Path, help="folder with a file for each trial, and shipped.json")
    parser.add_argument("--model", default=str(DEMO), help="folder of a checkpoint, or a name of the hub")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    args = parser.parse_args(arguments)
    try:
        judged = judge_outputs(load_pretrained(args.model, device=args.device), args.outputs)
    except (ValueError, OSError, ImportError) as error:
        print(f"judge_outputs: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(judged, indent=2))
    else:
        rows = [
            [name, *(f"{scores[x]:.4f}" for x in METRICS), scores["refused"] or "passed"]
            for name, scores in judged.items()
        ]
        print("\n".join(lines_of(("trial", *METRICS, "verdict"), rows)))
    return REFUSED if any(scores["refused"] for scores in judged.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
