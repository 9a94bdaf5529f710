"""What ``overspill build`` says before and after the work: its plan, and its summary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from overspill.cli.lines import counted, glued, harmless
from overspill.cli.progress import format_count, format_duration
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.storage.manifest import Manifest


def plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    """The plan of a build, from its event: what is read, in which passes, and what it takes."""
    about = "" if plan["edges_known"] else "about "
    edges = glued(f"{about}{format_count(plan['edges'])} edges")
    reads = glued(f"{counted(plan['files'], 'file')}, {format_bytes(plan['input_bytes'])}")
    told = f"{reads}, {edges}" if plan["edges"] or plan["edges_known"] else reads
    yield f"  reads    {told}"
    passes = ", ".join(glued(told) for told in _counted_in_a_row(plan["passes"]))
    yield f"  passes   {len(plan['passes'])}: {passes}"
    buckets = f"about {sum(one['buckets'] for one in plan['passes']):,} in all"
    size = glued(format_bytes(plan["bucket_bytes"]))
    threads = glued(counted(plan["threads"], "thread"))
    yield f"  buckets  {plan['buckets']} of {size} at a time, {glued(buckets)}; {threads}"
    memory = format_bytes(plan["projected_bytes"]), format_bytes(plan["allowed_bytes"])
    yield f"  memory   needs {glued(memory[0])}, {glued(f'{memory[1]} allowed')}"
    yield f"  disk     {_disk(plan, about)}"
    for left_out in plan["unknown"]:
        yield f"           and {left_out}"


def _disk(plan: dict[str, Any], about: str) -> str:
    needs = glued(f"{about}{format_bytes(plan['disk_bytes'])}")
    stays = glued(format_bytes(plan["dataset_bytes"]))
    free = glued(f"{format_bytes(plan['free_bytes'])} free")
    told = f"needs {needs}, {free}; {stays} stay"
    if plan["least_disk_bytes"] <= plan["free_bytes"] < plan["disk_bytes"]:
        told += "; it may run out"
    return told


def _counted_in_a_row(passes: list[dict[str, Any]]) -> Iterator[str]:
    """The phases in order of their first appearance, and how often each comes."""
    phases = [one["phase"] for one in passes]
    for phase in dict.fromkeys(phases):
        often = phases.count(phase)
        yield phase if often == 1 else f"{phase} ({often} times)"


def summary_lines(out: str, manifest: Manifest, summary: dict[str, Any]) -> Iterator[str]:
    """What a build has made, what it counted, and what it took."""
    nodes, edges = glued(f"{summary['nodes']:,} nodes"), glued(f"{summary['edges']:,} edges")
    took = glued(format_duration(summary["seconds"]))
    rate = glued(f"{format_count(summary['edges_per_second'])} edges/s")
    yield f"{harmless(out)}: {nodes}, {edges} in {took}, {rate}"
    yield from _type_lines(manifest, summary["notes"])
    files = manifest.files()
    size = glued(format_bytes(sum(record.nbytes for record in files)))
    yield f"  size     {size} in {glued(counted(len(files), 'file'))}"
    peak, projected = summary["peak_anon_bytes"], summary["projected_bytes"]
    yield (
        f"  memory   {glued(format_bytes(peak))} at its peak, of "
        f"{glued(f'{format_bytes(projected)} projected')}"
    )
    phases = ", ".join(
        glued(f"{phase} {format_duration(took)}")
        for phase, took in summary["phase_seconds"].items()
    )
    yield f"  time     {phases}"


def _type_lines(manifest: Manifest, notes: dict[str, dict[str, int]]) -> Iterator[str]:
    counts = [(name, f"{node.count:,} nodes") for name, node in manifest.node_types.items()]
    counts += [
        (":".join(key), f"{edge.count:,} edges") for key, edge in manifest.edge_types.items()
    ]
    alone = len(manifest.node_types) == len(manifest.edge_types) == 1
    for name, count in counts:
        told = [] if alone else [glued(count)]
        told += [
            glued(f"{note.replace('_', ' ')}: {number:,}")
            for note, number in notes.get(name, {}).items()
        ]
        if told:
            yield f"  {name}  {', '.join(told)}"
