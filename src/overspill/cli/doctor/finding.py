"""What the doctor says: a finding, and the remedy that a person can paste."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# A problem ends a job or stands against starting it; advice is what makes one slower, or riskier.
Severity = Literal["problem", "advice"]
# Where the text belongs: a shell, a pod's description, a Python program.
RemedyKind = Literal["shell", "yaml", "python"]


@dataclass(frozen=True)
class Remedy:
    """What to paste, and where.

    Attributes:
        text: One line; of a pod's description one for each place in it.
        kind: What reads it.
    """

    text: str
    kind: RemedyKind = "shell"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that will go wrong, or could go better.

    Attributes:
        check: What was looked at: one of "system", "settings", "memory", "shm", "spill_dir", "cpu",
            "limits", "kernel", "software".
        severity: Whether it is a problem, or advice.
        measured: What was measured, with its figure.
        why: Why it matters.
        remedy: What to do about it.
        otherwise: What does as well, for those who cannot do the remedy.
        sources: Where it is known from, for faults of other packages.
    """

    check: str
    severity: Severity
    measured: str
    why: str
    remedy: Remedy
    otherwise: Remedy | None = None
    sources: tuple[str, ...] = ()
