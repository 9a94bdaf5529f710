"""Paths that other processes were sent, perhaps on another machine, where they name other files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from overspill.errors import FormatError, StaleFileError
from overspill.linux.identity import host_identity


@contextmanager
def sent_from(host: str, path: str, what: str, *, remedy: str | None = None) -> Iterator[None]:
    """Have the failure to find what was sent name both machines, where there are two.

    Args:
        host: The sender, as `host_identity` named it.
        path: Where it lies.
        what: What was sent, as "dataset".
        remedy: What to do where this is another machine, or another boot of it.

    Raises:
        StaleFileError: For one of the body, or a `FormatError`, on another machine.
    """
    try:
        yield
    except (StaleFileError, FormatError) as error:
        here = host_identity()
        if host == here:
            raise
        told = f"put the same {what} at this path there too, or on a file system that both share"
        raise StaleFileError(
            f"{error.message}; the {what} was sent from {host}, and this is {here}",
            path=path,
            errno=error.errno,
            remedy=remedy or told,
        ) from error


def require_sent(what: str, path: str, *, found: str, sent: str) -> None:
    """Refuse another dataset, or the like, than the one that was sent (StaleFileError)."""
    if found != sent:
        raise StaleFileError(
            f"another {what} stands at {path}: {found}, where {sent} was meant",
            path=path,
            remedy=f"open the {what} again in the sender, or keep the old one in place",
        )
