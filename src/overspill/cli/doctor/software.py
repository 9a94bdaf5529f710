"""Known faults of torch, PyG and what belongs to them: a table, and the rows that apply here.

A range holds the versions for which a source says so; where a fault ended is left open only if it
has not ended. Versions are compared by their release numbers: "2.10.0a0+git" counts as 2.10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from overspill.cli.doctor.finding import Finding, Remedy, Severity

Versions = Mapping[str, str | None]
_RELEASE = re.compile(r"\d+(?:\.\d+)*")
# What the wheels of PyG's extensions tell of the torch they were built for: "+pt27cu126".
_BUILT_FOR = re.compile(r"\+pt(\d)(\d+)(cpu|cu\d+|rocm[\d.]+)?")
_EXTENSIONS = ("pyg_lib", "torch_sparse", "torch_scatter", "torch_cluster", "torch_spline_conv")


@dataclass(frozen=True, kw_only=True)
class Range:
    """Versions of a package, from one on and before another.

    Attributes:
        package: Its name.
        since: The first version; None is from the beginning.
        before: The first version that is not of the range any more; None is to this day.
    """

    package: str
    since: str | None = None
    before: str | None = None

    def holds(self, versions: Versions) -> bool:
        """Whether the installed version is one of them; False where none is installed."""
        found = _release(versions.get(self.package))
        if found is None:
            return False
        return (self.since is None or found >= (_release(self.since) or ())) and (
            self.before is None or found < (_release(self.before) or ())
        )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A row of the table.

    Attributes:
        where: The versions that have it; all ranges must hold.
        without: Packages that must be missing, all of them.
        severity: Whether a program fails for sure, or in a case of its own.
        what: What goes wrong, in one sentence.
        remedy: What to do.
        sources: Where it is known from.
    """

    where: tuple[Range, ...]
    without: tuple[str, ...] = ()
    severity: Severity = "advice"
    what: str
    remedy: Remedy
    sources: tuple[str, ...]

    def applies(self, versions: Versions) -> bool:
        """Whether the installation has this fault."""
        missing = all(versions.get(name) is None for name in self.without)
        return missing and all(one.holds(versions) for one in self.where)


# What is older has faults of its own, of which one cure is told: a version that Overspill takes.
LEAST_VERSIONS = {"torch": "2.13.0", "torch_geometric": "2.7.0"}

FAULTS: tuple[Fault, ...] = (
    Fault(
        where=(Range(package="torch", before=LEAST_VERSIONS["torch"]),),
        severity="problem",
        what=f"Overspill needs torch {LEAST_VERSIONS['torch']} or later.",
        remedy=Remedy(f"pip install --upgrade 'torch>={LEAST_VERSIONS['torch']}'"),
        sources=("Overspill's own requirements",),
    ),
    Fault(
        where=(Range(package="torch_geometric", before=LEAST_VERSIONS["torch_geometric"]),),
        severity="problem",
        what=f"overspill.pyg needs PyG {LEAST_VERSIONS['torch_geometric']} or later.",
        remedy=Remedy(
            f"pip install --upgrade 'torch_geometric>={LEAST_VERSIONS['torch_geometric']}'"
        ),
        sources=("Overspill's own requirements",),
    ),
    # Mended in its repository; no release has it as far as is known, 1.3.6 being the last.
    Fault(
        where=(
            Range(package="ogb", before="1.3.7"),
            Range(package="torch", since="2.6"),
        ),
        severity="problem",
        what="ogb's PyG datasets do not load (UnpicklingError); the variable lets files run code, "
        "so set it for files that you trust.",
        remedy=Remedy("export TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"),
        sources=(
            "https://github.com/snap-stanford/ogb/issues/497",
            "https://github.com/snap-stanford/ogb/pull/494",
        ),
    ),
    Fault(
        where=(Range(package="torch_geometric", since=LEAST_VERSIONS["torch_geometric"]),),
        without=("pyg_lib", "torch_sparse"),
        what="PyG's own NeighborLoader raises ImportError without pyg_lib or torch_sparse; "
        "Overspill's needs neither.",
        remedy=Remedy("from overspill.pyg import NeighborLoader", "python"),
        sources=("https://github.com/pyg-team/pytorch_geometric/issues/7240",),
    ),
)


def software_findings(versions: Versions) -> Iterator[Finding]:
    """Findings about the installed packages: a missing torch, the table, foreign extensions."""
    if versions.get("torch") is None:
        yield Finding(
            check="software",
            severity="problem",
            measured="torch is not installed",
            why="Tensors and loaders are torch's; only a build works without.",
            remedy=Remedy("pip install torch"),
        )
    for fault in FAULTS:
        if fault.applies(versions):
            yield Finding(
                check="software",
                severity=fault.severity,
                measured=" with ".join(f"{r.package} {versions[r.package]}" for r in fault.where),
                why=fault.what,
                remedy=fault.remedy,
                sources=fault.sources,
            )
    yield from _foreign_extensions(versions)


def _foreign_extensions(versions: Versions) -> Iterator[Finding]:
    """Extensions built for another torch than the one that will load them."""
    torch = versions.get("torch")
    release = _release(torch)
    if torch is None or release is None:
        return
    wrong = [
        f"{name} {versions[name]}"
        for name in _EXTENSIONS
        if _built_for_another(versions.get(name), torch, release)
    ]
    if not wrong:
        return
    numbers = ".".join(str(number) for number in (*release, 0, 0)[:2])
    build = torch.partition("+")[2] or "cpu"
    names = " ".join(one.split(" ")[0] for one in wrong)
    yield Finding(
        check="software",
        severity="problem",
        measured=f"{', '.join(wrong)} with torch {torch}",
        why="An extension works with the torch that it was built for; with another its import "
        "fails (undefined symbol), or it crashes.",
        remedy=Remedy(
            f"pip install --force-reinstall --no-deps {names} "
            f"-f https://data.pyg.org/whl/torch-{numbers}.0+{build}.html"
        ),
        sources=(
            "https://github.com/rusty1s/pytorch_sparse/issues/250",
            "https://github.com/rusty1s/pytorch_sparse/issues/103",
        ),
    )


def _built_for_another(extension: str | None, torch: str, release: tuple[int, ...]) -> bool:
    built = _BUILT_FOR.search(extension or "")
    if built is None:
        return False
    if (int(built[1]), int(built[2])) != (*release, 0, 0)[:2]:
        return True
    # One without CUDA runs beside a torch with it, not the other way round.
    return torch.endswith("+cpu") and (built[3] or "cpu") != "cpu"


def _release(version: str | None) -> tuple[int, ...] | None:
    """The release numbers without the zeros at their end, so that 2.10 and 2.10.0 are equal."""
    found = _RELEASE.match(version or "")
    if found is None:
        return None
    numbers = [int(part) for part in found[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
