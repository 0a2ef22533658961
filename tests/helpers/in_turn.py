"""Run by `accelerate launch`: several runs one after the other, since the processes' start takes longer than a run."""

import json
import sys
from importlib import import_module


def main(runs: str) -> None:
    *others, last = json.loads(runs)
    for script, *arguments in others:
        module = import_module(f"tests.helpers.{script}")
        end_run, module.end_run = module.end_run, lambda trainer: trainer.accelerator.wait_for_everyone()
        module.main(*arguments)
        module.end_run = end_run  # takes the group of processes down
    import_module(f"tests.helpers.{last[0]}").main(*last[1:])


if __name__ == "__main__":
    main(*sys.argv[1:])
