"""Which ends of an action are as promised: done, refused by a name that fits, or killed by us.

An error of Overspill's is not enough: an input that is right must not be refused as wrong, nor a
file that nobody touched be found damaged. Each action has the names that its stage explains.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from soak.actors import Actor

# The disk is filled and the memory is small: both may be refused, to everybody.
_ROOM = {"DiskRefusedError", "NoRoomError"}
EXPECTED = {
    "build": _ROOM,
    "partition": _ROOM,
    "load": _ROOM,
    "spill": _ROOM,
    "preshare": _ROOM,
    "grow": _ROOM,
    "hand over": _ROOM,
    "collate": _ROOM,
    "clean": set[str](),
    "verify": set[str](),
}
_OF_A_WORKER = "DataLoader worker (pid"
# Names that only a killed process of its own family explains, with what the message must begin
# with. Of Python and torch: a pipe or a socket to a process that is gone, and a loader's worker.
AFTER_A_KILL = {
    "BuildFailedError": "the build's process was ended by SIGKILL",
    "EOFError": "",
    "BrokenPipeError": "",
    "ConnectionResetError": "",
    "RuntimeError": _OF_A_WORKER,
}
_LONGEST_PART = 4000


@dataclass(frozen=True)
class Verdict:
    """What an actor came to: a word for the summary, and the violation, if it is one."""

    outcome: str
    violation: str | None = None


def judge(actor: Actor) -> Verdict:
    """Judge an actor that has been reaped."""
    told = actor.report()
    if actor.status == -signal.SIGKILL:
        if actor.pid in actor.killed:
            return Verdict("killed")
        return _violation(actor, "was ended by SIGKILL, and not by the killer")
    if actor.status != 0 or told is None:
        return _violation(actor, f"ended with status {actor.status}")
    if told["outcome"] == "done":
        return Verdict("done")
    name = told["error"]
    # torch tells of a killed worker by a signal handler that raises wherever the main thread is:
    # within Python's own threading, that leaves another error on top.
    if actor.killed and any(text.startswith(_OF_A_WORKER) for text in told["while"]):
        return Verdict("RuntimeError, and on top another")
    if name in AFTER_A_KILL:
        if actor.killed and told["text"].startswith(AFTER_A_KILL[name]):
            return Verdict(name)
    elif told["named"] and name in EXPECTED[actor.action]:
        return Verdict(name)
    return _violation(actor, f"raised {name}, which nothing explains", told["trace"])


def shortened(text: str) -> str:
    """A long text without its middle: traces of a fault begin with what it was."""
    if len(text) <= 2 * _LONGEST_PART:
        return text
    return f"{text[:_LONGEST_PART]}\n[...]\n{text[-_LONGEST_PART:]}"


def _violation(actor: Actor, what: str, trace: str = "") -> Verdict:
    said = shortened(f"{trace}\n{actor.output()}".strip())
    killed = f"killed in its family: {actor.killed or 'none'}"
    return Verdict(
        "violation", f"{actor.action} {actor.options} (pid {actor.pid}) {what}; {killed}\n{said}"
    )
