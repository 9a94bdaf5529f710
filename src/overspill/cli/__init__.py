"""The command ``overspill``: one file a verb."""

import sys


def main() -> None:
    """Run the command. Its frame is imported here, so that a verb's own processes stay light."""
    try:
        from overspill.cli.app import main as run

        run()
    except KeyboardInterrupt:  # before a verb had begun, or while it ended
        print("overspill: interrupted", file=sys.stderr)
        sys.exit(130)
