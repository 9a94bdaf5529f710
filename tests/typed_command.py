"""The command as it is typed, in a process of its own: ``python typed_command.py VERB ...``.

`in_a_process` runs this file in a fork that has torch already, which makes it some seconds quicker.
"""

from __future__ import annotations

from pathlib import Path

from forked import Ended, run_forked, script_environment
from overspill.cli import main


def in_a_process(*arguments: object, code: int = 0, columns: int | None = None) -> Ended:
    """Run the command, compare its exit status, and give its output and errors.

    Args:
        arguments: What follows "overspill".
        code: The exit status that is wanted.
        columns: The terminal's width; None: no terminal.
    """
    env = script_environment({} if columns is None else {"COLUMNS": str(columns)})
    words = [str(one) for one in arguments]
    done = run_forked(Path(__file__), words, env=env, shm_bytes=None, timeout_s=300)
    assert done.returncode == code, done.stderr
    return done


if __name__ == "__main__":
    main()
