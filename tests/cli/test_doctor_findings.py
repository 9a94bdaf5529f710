"""What follows from what was measured: a row for each thing that can be wrong."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from doctor_machines import GIB, MIB, WELL, machine

from overspill.cli.doctor.diagnosis import diagnose
from overspill.cli.doctor.disk import disk_findings
from overspill.cli.doctor.finding import Finding
from overspill.cli.doctor.memory import memory_findings, shm_findings
from overspill.linux.cgroups import TaskUse
from overspill.settings import Settings

V1_GROUP = "/sys/fs/cgroup/memory/job"


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [one.measured for one in findings]
    return findings[0]


def test_nothing_is_found_where_all_is_well() -> None:
    assert diagnose(WELL) == []


MEMORY = {"available_bytes": 100 * MIB, "limit_bytes": 4 * GIB}
FULL = {"errno": errno.ENOSPC, "path": "/", "elsewhere": "/var/tmp/overspill"}
# What is changed; then check and severity, a word of what was measured, and the remedy.
ROWS: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"memory": {**MEMORY, "limit_bytes": 512 * MIB}},
        "memory problem",
        "100.0 MiB of memory can still be had under the limit of 512.0 MiB",
        "echo 2147483648 | sudo tee /sys/fs/cgroup/job/memory.max",
    ),
    (
        {"memory": {**MEMORY, "anon_bytes": 3 * GIB, "group": V1_GROUP}},
        "memory problem",
        "anonymous memory, 3.0 GiB",
        f"echo {8 * GIB} | sudo tee {V1_GROUP}/memory.limit_in_bytes",
    ),
    (
        {"memory": {**MEMORY, "anon_bytes": 3 * GIB}, "surroundings": "docker"},
        "memory problem",
        "limit of 4.0 GiB",
        "docker run --memory=8g IMAGE",
    ),
    (
        {"memory": {**MEMORY, "anon_bytes": 3 * GIB}, "surroundings": "kubernetes"},
        "memory problem",
        "limit of 4.0 GiB",
        "resources: {limits: {memory: 8Gi}}",
    ),
    (
        {"memory": {"available_bytes": 10 * MIB, "limit_bytes": None, "group": None}},
        "memory problem",
        "10.0 MiB of memory can still be had; the most",
        "ps -eo pid,rss,args --sort=-rss | head",
    ),
    (
        {"memory": {"kills": 1, "group": "/sys/fs/cgroup/system.slice/train.service"}},
        "memory advice",
        "has killed 1 process here",
        "sudo systemctl set-property train.service MemoryMax=64G",
    ),
    (
        {"memory": {"kills": 3, "group": "/sys/fs/cgroup/slurm/uid_0/job_7"}},
        "memory advice",
        "has killed 3 processes here",
        "sbatch --mem=64G COMMAND",
    ),
    ({"memory": {"dirty_bytes": 9 * GIB}}, "memory advice", "9.0 GiB of the 32.0 GiB", "sync"),
    (
        {"memory": {"shmem_bytes": 9 * GIB}},
        "memory advice",
        "are shared memory",
        "du -ah /dev/shm | sort -h | tail",
    ),
    (
        {"settings": Settings(spill_dir=Path("/spill"), memory_limit_bytes=40 * GIB)},
        "settings advice",
        "OVERSPILL_MEMORY_LIMIT is 40.0 GiB, and there are 32.0 GiB",
        "unset OVERSPILL_MEMORY_LIMIT",
    ),
    (
        {"shm": {"total_bytes": None, "free_bytes": None}},
        "shm problem",
        "/dev/shm is missing",
        "sudo mkdir -p /dev/shm && sudo mount -t tmpfs tmpfs /dev/shm",
    ),
    (
        {"shm": {"total_bytes": 64 * MIB, "free_bytes": 64 * MIB}, "surroundings": "docker"},
        "shm problem",
        "/dev/shm has 64.0 MiB in all",
        "docker run --shm-size=8g IMAGE",
    ),
    (
        {
            "shm": {"total_bytes": 64 * MIB, "free_bytes": 64 * MIB},
            "memory": {"limit_bytes": 3 * GIB, "available_bytes": 2 * GIB},
            "surroundings": "podman",
        },
        "shm problem",
        "64.0 MiB",
        "podman run --shm-size=2g IMAGE",  # what is in it counts against the limit
    ),
    (
        {
            "shm": {"total_bytes": 64 * MIB, "free_bytes": 64 * MIB},
            "settings": Settings(spill_dir=Path("/spill"), spill_batches=True),
        },
        "shm advice",  # batches go through files
        "64.0 MiB",
        "sudo mount -o remount,size=8g /dev/shm",
    ),
    (
        {"shm": {"total_bytes": 512 * MIB, "free_bytes": 512 * MIB}},
        "shm advice",
        "512.0 MiB in all",
        "sudo mount -o remount,size=8g /dev/shm",
    ),
    (
        {"shm": {"free_bytes": 10 * MIB}},
        "shm problem",
        "10.0 MiB free of 16.0 GiB",
        "du -ah /dev/shm | sort -h | tail",
    ),
    (
        {"shm": {"total_bytes": 48 * GIB, "free_bytes": 48 * GIB}},
        "shm advice",
        "may hold 48.0 GiB, and the memory limit is 32.0 GiB",
        "export OVERSPILL_SHM_RESERVE_BYTES=32GiB",
    ),
    (
        {"shm": {"total_bytes": 48 * GIB, "free_bytes": 48 * GIB}, "surroundings": "docker"},
        "shm advice",
        "may hold 48.0 GiB",
        "docker run --shm-size=16g IMAGE",
    ),
    (
        {"settings": None, "settings_refusal": "OVERSPILL_MIN_BYTES='x' is not a size"},
        "settings problem",
        "OVERSPILL_MIN_BYTES='x' is not a size",
        "unset OVERSPILL_MIN_BYTES",
    ),
    (
        {"spill_dir": {"memory_backed": True, "kind": "tmpfs", "elsewhere": "/mnt/a b/overspill"}},
        "spill_dir problem",
        "/spill lies on tmpfs, which is memory",
        "export OVERSPILL_DIR='/mnt/a b/overspill'",
    ),
    (
        {"spill_dir": {"memory_backed": True, "kind": "tmpfs"}, "surroundings": "docker"},
        "spill_dir problem",
        "which is memory",
        "docker run -v /var/tmp:/spill -e OVERSPILL_DIR=/spill IMAGE",
    ),
    (
        {"spill_dir": {"refusal": "the spill directory /spill cannot be used: is a file"}},
        "spill_dir problem",
        "is a file",
        "export OVERSPILL_DIR=/path/on/a/local/disk",
    ),
    (
        {"spill_dir": {"copy_on_write": True, "kind": "btrfs"}},
        "spill_dir problem",
        "copy-on-write",
        "export OVERSPILL_ALLOW_COW_DISK=1",
    ),
    (
        {"spill_dir": {"reserves": False, "reason": "cannot reserve: not supported"}},
        "spill_dir problem",
        "cannot reserve: not supported",
        "export OVERSPILL_DIR=/path/on/a/local/disk",
    ),
    (
        {"spill_dir": {"locks": False, "reason": "no locks"}},
        "spill_dir problem",
        "no locks",
        "export OVERSPILL_DIR=/path/on/a/local/disk",
    ),
    (
        {
            "spill_dir": {"path": "/data", "chosen_by": "current directory"},
            "settings": Settings(),
        },
        "spill_dir advice",
        "OVERSPILL_DIR is not set",
        "export OVERSPILL_DIR=/data/overspill-spill",
    ),
    (
        {"spill_dir": {"path": "/data", "chosen_by": "--dir"}, "settings": Settings()},
        "spill_dir advice",
        "OVERSPILL_DIR is not set",
        "export OVERSPILL_DIR=/data",
    ),
    (
        {"spill_dir": {**FULL, "reserves": False, "free_bytes": 4096}},
        "spill_dir problem",
        "the disk of / is full: 4.0 KiB free of 1000.0 GiB",
        'overspill clean /; du -x -h "$(df --output=target / | tail -n 1)" | sort -h | tail',
    ),
    (
        {"spill_dir": {**FULL, "refusal": "no file can be made there"}},
        "spill_dir problem",
        "the disk of / is full: 600.0 GiB free",
        'overspill clean /; du -x --inodes "$(df --output=target / | tail -n 1)" | sort -n | tail',
    ),
    (
        {"spill_dir": {"spare_bytes": -5}},
        "spill_dir problem",
        "may take 0 B of 1000.0 GiB",
        "overspill clean /spill; du -xh /spill | sort -h | tail",
    ),
    (
        {"spill_dir": {"spare_bytes": 20 * GIB}},
        "spill_dir advice",
        "may take 20.0 GiB",
        "overspill clean /spill; du -xh /spill | sort -h | tail",
    ),
    (
        {"settings": Settings(spill_dir=Path("/spill"), disk_limit_bytes=900 * GIB)},
        "spill_dir advice",
        "may take 550.0 GiB",
        "overspill clean /spill; du -xh /spill | sort -h | tail",
    ),
    (
        {"spill_dir": {"kind": "overlay"}, "surroundings": "kubernetes"},
        "spill_dir advice",
        "container's own layer",
        "volumes: [{name: spill, emptyDir: {}}]\n"
        "volumeMounts: [{name: spill, mountPath: /spill}]\n"
        "env: [{name: OVERSPILL_DIR, value: /spill}]",
    ),
    (
        {"spill_dir": {"kind": "nfs4", "elsewhere": "/scratch/overspill"}},
        "spill_dir advice",
        "lies on nfs4",
        "export OVERSPILL_DIR=/scratch/overspill",
    ),
    (
        {"spill_dir": {"kind": "fuse.sshfs"}},
        "spill_dir advice",
        "lies on fuse.sshfs",
        "export OVERSPILL_DIR=/path/on/a/local/disk",
    ),
    (
        {"spill_dir": {"read_ahead_bytes": 8 * MIB}},
        "spill_dir advice",
        "read 8.0 MiB ahead",
        "echo 1024 | sudo tee /sys/dev/block/8:0/queue/read_ahead_kb",
    ),
    (
        {"spill_dir": {"read_ahead_bytes": 0}},
        "spill_dir advice",
        "read 0 B ahead",
        "echo 1024 | sudo tee /sys/dev/block/8:0/queue/read_ahead_kb",
    ),
    (
        {"supported": False, "kernel": "23.1.0"},
        "system problem",
        "not 64-bit Linux (23.1.0)",
        'docker run -it --shm-size=8g -v "$PWD":/app -w /app python:3.11 bash',
    ),
    (
        {"limits": {"open_files": 1024, "most_open_files": 524288}},
        "limits advice",
        "1,024 files",
        "ulimit -n 65536",
    ),
    (
        {"limits": {"open_files": 1024, "most_open_files": 8192}},
        "limits advice",
        "1,024 files",
        "ulimit -n 8192",
    ),
    (
        {"limits": {"open_files": 128, "most_open_files": 128}, "surroundings": "docker"},
        "limits problem",
        "128 files",
        "docker run --ulimit nofile=65536:65536 IMAGE",
    ),
    (
        {"limits": {"open_files": 1024, "most_open_files": 1024}},
        "limits advice",
        "1,024 files",
        "sudo prlimit --pid $$ --nofile=65536:65536",
    ),
    (
        {"limits": {"mappings": 1000}},
        "limits advice",
        "1,000 mappings",
        "sudo sysctl -w vm.max_map_count=262144",
    ),
    (
        {"limits": {"overcommit": 2}},
        "kernel problem",
        "vm.overcommit_memory is 2",
        "sudo sysctl -w vm.overcommit_memory=0",
    ),
    (
        {"limits": {"address_space_bytes": 4 * GIB}},
        "limits problem",
        "4.0 GiB (ulimit -v)",
        "ulimit -v unlimited",
    ),
    (
        {"limits": {"file_size_bytes": GIB}},
        "limits problem",
        "1.0 GiB (ulimit -f)",
        "ulimit -f unlimited",
    ),
    (
        {"processors": {"quota": 2.5}},
        "cpu advice",
        "the time of 2.5 CPUs is allowed, on 8 CPUs",
        "export OMP_NUM_THREADS=3",
    ),
    (
        {"processors": {"quota": 0.2, "openmp_threads": 4}},
        "cpu advice",
        "0.2 CPUs",
        "export OMP_NUM_THREADS=1",
    ),
    (
        {"tasks": TaskUse(path="/sys/fs/cgroup/job", count=961, limit=1024)},
        "limits problem",
        "63 more processes and threads can be started, of 1,024",
        "echo 8192 | sudo tee /sys/fs/cgroup/job/pids.max",
    ),
    (
        {"tasks": TaskUse(path="/sys/fs/cgroup/user.slice", count=5000, limit=5000)},
        "limits problem",
        "0 more processes",
        "sudo systemctl set-property user.slice TasksMax=10000",
    ),
    (
        {"tasks": TaskUse(path="/sys/fs/cgroup/user@1000.service/a.scope", count=1, limit=9)},
        "limits problem",
        "8 more processes",
        "systemctl --user set-property a.scope TasksMax=8192",
    ),
    (
        {"tasks": TaskUse(path="/g", count=1, limit=512), "surroundings": "podman"},
        "limits advice",
        "511 more",
        "podman run --pids-limit=8192 IMAGE",
    ),
    (
        {"tasks": TaskUse(path="/g", count=1, limit=512), "surroundings": "kubernetes"},
        "limits advice",
        "511 more",
        "podPidsLimit: 8192  # the node's KubeletConfiguration",
    ),
    (
        {"fetch_method": "fadvise"},
        "kernel advice",
        "asked for by fadvise",
        "sudo setpriv --reuid=$(id -u) --regid=$(id -g) --init-groups "
        "--inh-caps=+sys_nice --ambient-caps=+sys_nice COMMAND",
    ),
    (
        {"fetch_method": "pread", "surroundings": "kubernetes"},
        "kernel advice",
        "asked for by pread",
        "securityContext: {capabilities: {add: [SYS_NICE]}}",
    ),
    (
        {"fetch_method": "fadvise", "surroundings": "docker"},
        "kernel advice",
        "fadvise",
        "docker run --cap-add=SYS_NICE IMAGE",
    ),
    (
        {"versions": {"torch": None}},
        "software problem",
        "torch is not installed",
        "pip install torch",
    ),
]


@pytest.mark.parametrize(("parts", "kind", "measured", "remedy"), ROWS)
def test_what_is_wrong_is_found_alone(
    parts: dict[str, Any], kind: str, measured: str, remedy: str
) -> None:
    # A small limit also has a /dev/shm that is larger than it: a row of its own.
    beside = "shm" if "memory" in parts and kind.startswith("memory") else ""
    found = only([one for one in diagnose(machine(**parts)) if one.check != beside])
    assert f"{found.check} {found.severity}" == kind
    assert measured in found.measured
    assert found.remedy.text == remedy
    assert len(found.why) > 20


@pytest.mark.parametrize(
    "parts",
    [
        # Just on the right side of each line that is drawn.
        {"memory": {"available_bytes": 512 * MIB}},
        {"memory": {"dirty_bytes": 8 * GIB}},
        {"memory": {"shmem_bytes": 8 * GIB}},
        {"memory": {"clean_file_bytes": 31 * GIB}},
        {"memory": {"available_bytes": None, "limit_bytes": None, "kills": None}},
        {"shm": {"total_bytes": GIB, "free_bytes": 256 * MIB}},
        {"shm": {"total_bytes": 32 * GIB}},
        {"spill_dir": {"spare_bytes": 32 * GIB}},
        {"spill_dir": {"spare_bytes": None}},
        {"spill_dir": {"read_ahead_bytes": MIB}},
        {"spill_dir": {"read_ahead_bytes": 64 << 10}},
        {"spill_dir": {"read_ahead_bytes": None, "read_ahead_setting": None}},
        {
            "spill_dir": {"copy_on_write": True},
            "settings": Settings(spill_dir=Path("/spill"), allow_cow_disk=True),
        },
        {"settings": Settings(spill_dir=Path("/spill"), memory_limit_bytes=32 * GIB)},
        {"processors": {"quota": 7.5}},
        {"processors": {"quota": 2.0, "openmp_threads": 2}},
        {"limits": {"open_files": 4096}},
        {"limits": {"open_files": None, "mappings": None, "overcommit": None}},
        {"limits": {"overcommit": 1}},
        {"tasks": TaskUse(path="/g", count=512, limit=1024)},
    ],
)
def test_what_is_well_is_not_found(parts: dict[str, Any]) -> None:
    assert diagnose(machine(**parts)) == []


def test_a_full_group_is_relieved_of_what_fills_it() -> None:
    for part, remedy in (("shmem_bytes", "du -ah /dev/shm"), ("dirty_bytes", "sync")):
        held = machine(memory={**MEMORY, part: 3 * GIB})
        problem = next(memory_findings(held))
        assert problem.severity == "problem" and problem.remedy.text.startswith(remedy)


def test_of_what_stands_against_a_directory_the_first_is_told_alone() -> None:
    parts = {"memory_backed": True, "spare_bytes": 0, "read_ahead_bytes": 8 * MIB, "refusal": "x"}
    assert "memory" in only(list(disk_findings(machine(spill_dir=parts)))).measured


@pytest.mark.parametrize(
    ("settings", "otherwise"),
    [
        (None, "export OVERSPILL_DIR=/data/overspill-spill OVERSPILL_SPILL_BATCHES=1"),
        (Settings(), "export OVERSPILL_DIR=/data/overspill-spill OVERSPILL_SPILL_BATCHES=1"),
        (Settings(spill_batches=True), "export OVERSPILL_DIR=/data/overspill-spill"),
        (Settings(spill_dir=Path("/spill")), "export OVERSPILL_SPILL_BATCHES=1"),
        (Settings(spill_dir=Path("/spill"), spill_batches=True), None),
    ],
)
def test_who_cannot_enlarge_shm_gets_the_line_that_is_missing(
    settings: Settings | None, otherwise: str | None
) -> None:
    held = machine(
        shm={"total_bytes": 64 * MIB, "free_bytes": 64 * MIB},
        spill_dir={"path": "/data", "chosen_by": "current directory"},
        settings=settings,
    )
    found = next(shm_findings(held))
    assert (found.otherwise.text if found.otherwise else None) == otherwise
    assert "import overspill" in found.why
    assert ("cannot be changed" in found.why) == (otherwise is not None)


def test_a_directory_that_will_not_do_is_not_offered() -> None:
    held = machine(
        shm={"total_bytes": 64 * MIB, "free_bytes": 64 * MIB},
        spill_dir={"memory_backed": True},
        settings=Settings(),
    )
    found = next(shm_findings(held)).otherwise
    assert found and found.text.startswith("export OVERSPILL_DIR=/path/on/a/disk ")


def test_another_disk_is_named_beside_what_fills_this_one() -> None:
    found = only(list(disk_findings(machine(spill_dir={**FULL, "reserves": False}))))
    assert "OVERSPILL_DIR=/var/tmp/overspill" in found.why and "bus error" not in found.why


def test_problems_come_first() -> None:
    held = machine(memory={"kills": 1}, limits={"overcommit": 2}, processors={"quota": 1.0})
    assert [one.severity for one in diagnose(held)] == ["problem", "advice", "advice"]
