"""Actions of whoever tends the machine: the command's clean and verify, as they are typed."""

from __future__ import annotations

import sys
from random import Random

from overspill import cli
from soak.actors import ViolationError
from soak.stage import Stage


def clean(stage: Stage, chance: Random, *, dry_runs: bool) -> dict[str, int]:
    """``overspill clean``, beside runs that live; at times only to see what it would do."""
    dry = dry_runs and chance.random() < 0.3
    _command("clean", str(stage.spill), *(["--dry-run"] if dry else []))
    return {}


def verify(stage: Stage, chance: Random, *, out: str) -> dict[str, int]:
    """``overspill verify`` of a dataset that nobody changes."""
    _command("verify", str(stage.data / out))
    return {}


def _command(*words: str) -> None:
    sys.argv = ["overspill", *words]
    try:
        cli.main()
    except SystemExit as ended:
        if ended.code:
            raise ViolationError(f"{' '.join(sys.argv)}: exit status {ended.code}") from ended
