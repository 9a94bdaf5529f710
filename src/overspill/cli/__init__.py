"""The command ``overspill``: one file a verb."""


def main() -> None:
    """Run the command. Its frame is imported here, so that a verb's own processes stay light."""
    from overspill.cli.app import main as run

    run()
