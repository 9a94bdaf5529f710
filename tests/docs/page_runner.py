"""Runs the blocks of pages, each page in a fork of a process that has imported torch and PyG once.

    python page_runner.py < requests > answers

A request and its answer are a line of JSON each. The fork is a process of its own for everything
that a page may do: its directory, environment, children, mappings and memory go with it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch_geometric.data

import overspill.graph
import overspill.pyg

__all__ = ["overspill", "torch", "torch_geometric"]


def main() -> None:
    """Answer requests until there are no more."""
    gc.freeze()  # what is imported is not looked at again in every fork
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run_page(request)
            _end()
        _, status = os.waitpid(child, 0)
        report = Path(request["report"])
        done = [json.loads(text) for text in report.read_text().splitlines()]
        answer = {"status": os.waitstatus_to_exitcode(status), "blocks": done}
        print(json.dumps(answer), flush=True)


def _end() -> NoReturn:
    """End as any program does, but without taking torch apart module by module: a second a page."""
    gc.collect()
    atexit._run_exitfuncs()
    os._exit(0)


def _run_page(request: dict[str, Any]) -> None:
    """Run the blocks in order, up to the first that fails; each is reported as it ends."""
    os.chdir(request["directory"])
    sys.path[0] = request["directory"]
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    module = _fresh_main()
    with open(request["report"], "w", encoding="utf-8") as report:  # noqa: PTH123
        for place, block in enumerate(request["blocks"]):
            if request["apart"]:
                module = _fresh_main()
            streams = [Path(f"{request['report']}.{place}.{name}") for name in ("out", "err")]
            problem = _captured(block, module, request["page"], streams)
            told = {
                "problem": problem,
                "out": streams[0].read_text(errors="replace"),
                "err": streams[1].read_text(errors="replace"),
            }
            report.write(json.dumps(told) + "\n")
            report.flush()
            if problem:
                break
    sys.modules.pop("__main__")  # what it named goes, as at the end of a script


def _fresh_main() -> types.ModuleType:
    # What a page defines is found by name in forked workers, as in a script.
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return module


def _captured(
    block: dict[str, Any], module: types.ModuleType, page: str, streams: list[Path]
) -> str:
    kept = [os.dup(1), os.dup(2)]
    for number, path in enumerate(streams, start=1):
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(fd, number)
        os.close(fd)
    try:
        return _run_block(block, module, page)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, fd in enumerate(kept, start=1):
            os.dup2(fd, number)
            os.close(fd)


def _run_block(block: dict[str, Any], module: types.ModuleType, page: str) -> str:
    """What is wrong with a block, or nothing."""
    if block["kind"] == "file":
        Path(block["title"]).write_text(block["code"], encoding="utf-8")
        return ""
    if block["kind"] == "shell":
        return _run_commands(block)
    # As many lines further down as the block stands, so that tracebacks show the page's own.
    source = "\n" * (block["line"] - 1) + block["code"]
    try:
        exec(compile(source, page, "exec"), module.__dict__)
    except (Exception, SystemExit):  # noqa: BLE001 - a page may raise anything
        return traceback.format_exc()
    return ""


def _run_commands(block: dict[str, Any]) -> str:
    for place, command in enumerate(block["commands"], start=1):
        wanted = block["status"] if place == len(block["commands"]) else 0
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command], stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode != wanted:
            return f"exit status {done.returncode} instead of {wanted}: {command}"
    return ""


if __name__ == "__main__":
    main()
