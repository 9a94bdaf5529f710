"""All findings of a machine, the gravest first."""

from __future__ import annotations

from overspill.cli.doctor.disk import disk_findings
from overspill.cli.doctor.finding import Finding
from overspill.cli.doctor.machine import Machine
from overspill.cli.doctor.memory import memory_findings, shm_findings
from overspill.cli.doctor.process import process_findings
from overspill.cli.doctor.software import software_findings


def diagnose(machine: Machine) -> list[Finding]:
    """Draw the conclusions; reads nothing.

    Args:
        machine: What was measured.

    Returns:
        The findings, problems before advice, otherwise in the order in which they are looked for.
    """
    found: list[Finding] = []
    if machine.supported:
        found += [*memory_findings(machine), *shm_findings(machine), *disk_findings(machine)]
    found += [*process_findings(machine), *software_findings(machine.versions)]
    return sorted(found, key=lambda one: one.severity != "problem")
