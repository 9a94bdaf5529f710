"""What is counted over all rounds, and how the summary shows it."""

from __future__ import annotations

from collections import Counter, defaultdict

from overspill.units import format_bytes

MOST_VIOLATIONS = 20


class Counts:
    """Counters by subject, the violations, and the highest memory seen."""

    def __init__(self) -> None:
        self.by_subject: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.violations: list[str] = []
        self.peak_anon_bytes = 0

    def add(self, subject: str, name: str, number: int = 1) -> None:
        """Count one thing, or several."""
        self.by_subject[subject][name] += number

    def violate(self, round_name: str, violations: list[str]) -> None:
        """Take down what must not be, and say so at once."""
        for one in violations:
            self.violations.append(f"{round_name}: {one}")
            print(f"VIOLATION in {self.violations[-1]}", flush=True)

    def report_memory(self, anon_bytes: int) -> None:
        """Keep the highest."""
        self.peak_anon_bytes = max(self.peak_anon_bytes, anon_bytes)

    def summary(self) -> str:
        """Every count, a line a subject."""
        lines = []
        for subject, counted in sorted(self.by_subject.items()):
            told = (
                f"{name} {format_bytes(number) if name.startswith('bytes') else number}"
                for name, number in sorted(counted.items())
            )
            lines.append(f"{subject}: {', '.join(told)}")
        lines.append(f"most anonymous memory seen: {format_bytes(self.peak_anon_bytes)}")
        lines.append(f"violations: {len(self.violations)}")
        return "\n".join(lines)
