"""``overspill cluster``: its verbs, as a group of their own."""

from __future__ import annotations

import typer

from overspill.cli.cluster.build import build, finalise, init, partition
from overspill.cli.cluster.plan import plan
from overspill.cli.help_text import Verbs

VERBS = (plan, build, init, partition, finalise)

cluster = typer.Typer(
    name="cluster",
    cls=Verbs,
    help="Several machines, on Ray: plan, and build a dataset in parts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
