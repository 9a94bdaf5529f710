"""Errors name Python's arguments; a person at the command line has options instead."""

from __future__ import annotations

import re

from overspill.errors import OverspillError

_OPTIONS = (
    (r"columns=\(\"(\w+)\", \"(\w+)\"\)", r"--columns \1,\2"),
    (r"edge_axis=(\d)", r"--edge-axis \1"),
    (r"ids=['\"](\w+)['\"]", r"--ids \1"),
    (r"memory_limit to \"(\w+)\"", r"--memory-limit \1"),
    (r"\bnum_nodes\b", "--num-nodes"),
    (r"\bmemory_limit\b", "--memory-limit"),
    (r"header=True", "--header"),
    (r"header=False", "--no-header"),
    (r"non_finite=['\"](\w+)['\"]", r"--non-finite \1"),
    (r"with resume=True", "with --resume"),
    (r"with resume=False", "without --resume"),
    (r"\(resume=True\)", "(--resume)"),
    (r"\bthe same call\b", "the same command"),
    (r"\bfill=,", "--fill NAME=NUMBER,"),
    (r"\bkey=,", "FILE::COLUMN@KEY,"),
    (r"Columns\(\"(\w+)\", of=\"([\w.]+)\", key=\"(\w+)\"\)", r"NAME=\2::\1@\3"),
    (r"Columns\(\"(\w+)\"\)", r"NAME=::\1"),
    (r"open it with open_(?:dataset|partition)", "look at it with overspill info"),
    (r"make it with partition_dataset", "make it with overspill partition"),
    (r"build it with build_dataset", "build it with overspill build"),
)


def told_at_the_prompt(error: OverspillError) -> str:
    """The message in the command's own words, its remedy on a line of its own."""
    text = str(error)
    if error.remedy is not None:
        text = text.replace(f"; remedy: {error.remedy}", "") + f"\n  what to do: {error.remedy}"
    return at_the_prompt(text)


def at_the_prompt(text: str) -> str:
    """Words about a call, as they would be about a command."""
    for pattern, option in _OPTIONS:
        text = re.sub(pattern, option, text)
    return text
