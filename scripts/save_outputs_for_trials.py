#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what a model generates with the plans of a tuning run, for scripts/judge_outputs.py.

  python scripts/save_outputs_for_trials.py runs/cpu_20261126-120000_mlstm_chunkwise --best 3
  python scripts/save_outputs_for_trials.py RUN --trials 4 17 --model NX-AI/xLSTM-7b

`xlstm-hip tune` does both for the best plans at the end of a run; this is for others, and for other models.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from xlstm_hip._core.checks import IO_DTYPES, by_name
from xlstm_hip.models import load_pretrained, load_tokenizer
from xlstm_hip.models.hub import checkpoint_folder
from xlstm_hip.tune import save_outputs_for_trials
from xlstm_hip.tune.judge import JUDGED_OPS
from xlstm_hip.tune.measure import OK
from xlstm_hip.tune.runs import Run

DEMO = Path(__file__).resolve().parents[1] / "models/demo"


def chosen(run: Run, trials: list[int] | None, best: int) -> list[int]:
    """The numbers of the trials whose outputs are written: those named, or the fastest right ones."""
    if trials is None:
        right = [n for n, (_, result) in run.trials.items() if result.status == OK]
        return sorted(right, key=lambda n: run.trials[n][1].speedup_or_zero, reverse=True)[:best]
    unknown = [n for n in trials if n not in run.trials]
    if unknown:
        raise ValueError(f"--trials: expected trials of the run, 0 to {len(run.trials) - 1}, got {unknown}")
    return trials


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("run", type=Path, help="folder of a run of xlstm-hip tune")
    parser.add_argument("--trials", type=int, nargs="+", metavar="N", help="trials by number (default: --best)")
    parser.add_argument("--best", type=int, default=3, metavar="N", help="the N fastest right trials (default: 3)")
    parser.add_argument("--model", default=str(DEMO), help="folder of a checkpoint, or a name of the hub")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: RUN/outputs)")
    args = parser.parse_args(arguments)
    try:
        run = Run.open(args.run)
        settings = run.meta["settings"]
        if settings["op"] not in JUDGED_OPS:
            raise ValueError(f"run: expected one of {', '.join(JUDGED_OPS)}, got one of {settings['op']}")
        numbers = chosen(run, args.trials, args.best)
        if not numbers:
            raise ValueError("run: expected a trial with right results, got none")
        folder = checkpoint_folder("--model", args.model)
        model = load_pretrained(folder, by_name(IO_DTYPES)[settings["dtype"]], settings["device"])
        out = args.out or args.run / "outputs"
        plans = {f"trial-{n}": run.trials[n][0] for n in numbers}
        save_outputs_for_trials(model, load_tokenizer(folder, model.config.vocab_size), settings["op"], plans, out)
    except (ValueError, OSError, ImportError) as error:
        print(f"save_outputs_for_trials: {error}", file=sys.stderr)
        return 1
    print(f"{out}: {', '.join(plans)}; judge them: python scripts/judge_outputs.py {out} --model {args.model}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
