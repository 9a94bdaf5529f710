"""A plan as text of 40 columns or more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from overspill.cli.lines import counted, glued, table, wrapped
from overspill.cli.progress import format_count, format_duration
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.cluster.planning.plan import Plan
    from overspill.cluster.planning.rates import Rate, Rates
    from overspill.cluster.planning.spans import Span

_Rows = Iterator[tuple[str, ...]]
_BYTES = ("disk_write", "disk_read", "network", "transport", "checksum", "copy")
_SECONDS = ("round_trip", "start")
_SHOWN = {
    "cores": "processors",
    "disk_write": "disk, written",
    "disk_read": "disk, read",
    "random_reads": "random reads",
    "network": "network, each way",
    "transport": "through Ray, a core",
    "round_trip": "round trip",
    "split_edges": "edges split, a core",
    "build_edges": "edges built, a core",
    "checksum": "checksums, a thread",
    "start": "start of a process",
    "sample_edges": "edges sampled, a core",
    "copy": "rows copied, a core",
}


def as_text(plan: Plan, *, columns: int | None) -> str:
    """The plan for people.

    Args:
        plan: The estimates.
        columns: Width of the terminal; None is no terminal, and lines are as long as they need.
    """
    rows = [*_disk(plan), *_memory(plan), *_network(plan), *_build(plan), *_epoch(plan)]
    rows += _rates(plan.rates)
    parts = [wrapped(_head(plan), columns), table(rows, columns), *_findings(plan, columns)]
    return "\n\n".join(parts)


def _head(plan: Plan) -> str:
    work = plan.work
    told = [
        glued(counted(work.nodes, "node")),
        glued(counted(work.edges, "edge")),
        glued(f"{format_bytes(work.feature_bytes)} a node"),
        glued(f"in {counted(work.parts, 'part')}"),
        glued(f"on {counted(work.machines, 'machine')} of {format_bytes(work.memory_bytes)}"),
    ]
    return f"{', '.join(told)}; all figures are of one machine, the one with the most"


def _disk(plan: Plan) -> _Rows:
    disk = plan.disk
    yield ("disk",)
    yield "  its parts", format_bytes(disk.dataset_bytes), "stay"
    yield "  build, peak", format_bytes(disk.peak_bytes), "with what is staged and copied"
    yield "  input", format_bytes(disk.input_bytes), "is there before"


def _memory(plan: Plan) -> _Rows:
    held = plan.memory
    yield ("memory",)
    yield "  build", format_bytes(held.build_bytes), "tasks or builder, and Ray"
    yield "  serving", format_bytes(held.serving_bytes), "server, loader workers, Ray"
    yield "  page cache", f"{held.cached_share:.0%}", "of its parts, in what is left"


def _network(plan: Plan) -> _Rows:
    flow = plan.network
    yield ("network, into it and as much out of it",)
    yield "  build, edges", format_bytes(flow.build_staged_bytes), "staged on other machines"
    yield "  build, rows", format_bytes(flow.build_rows_bytes), "out of the one that has them all"
    batch = f"{flow.batch_requests:.0f} requests in {counted(flow.batch_rounds, 'round')}"
    yield "  a batch", format_bytes(int(flow.batch_bytes)), batch
    yield "  an epoch", format_bytes(int(flow.epoch_bytes)), f"{flow.batches:,} batches"


def _build(plan: Plan) -> _Rows:
    yield ("time of the build, at best and at worst",)
    for span in plan.build:
        if span.most:
            yield _time(span, span.stage)
    least, most = (sum(getattr(span, end) for span in plan.build) for end in ("least", "most"))
    yield "  all of it", f"{format_seconds(least)} to {format_seconds(most)}"


def _epoch(plan: Plan) -> _Rows:
    yield ("time of loading, without the model",)
    yield _time(plan.epoch.times(1 / max(1, plan.network.batches)), "a batch")
    yield _time(plan.epoch, "an epoch")


def _time(span: Span, name: str) -> tuple[str, ...]:
    ends = f"{format_seconds(span.least)} to {format_seconds(span.most)}"
    return f"  {name}", ends, f"most of it {span.bottleneck}"


def _rates(rates: Rates) -> _Rows:
    for source, names in rates.by_source().items():
        if names:
            yield (f"rates that were {source}",)
            for name in names:
                yield f"  {_SHOWN[name]}", _rate(name, getattr(rates, name))


def _rate(name: str, rate: Rate) -> str:
    if name == "cores":
        return f"{rate.value:.0f}"
    if name in _SECONDS:
        return format_seconds(rate.value)
    if name in _BYTES:
        return f"{format_bytes(int(rate.value))}/s"
    return f"{format_count(rate.value)}/s"


def format_seconds(seconds: float) -> str:
    """A duration for people, of less than a tenth of a second too."""
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else format_duration(seconds)


def _findings(plan: Plan, columns: int | None) -> Iterator[str]:
    for line in plan.findings():
        yield wrapped(f"! {line}", columns, indent=2)
