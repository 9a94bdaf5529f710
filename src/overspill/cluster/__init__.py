"""Several machines, on Ray: datasets in parts, each on its machine's disk."""

from __future__ import annotations

from overspill.errors import UnavailableError

try:
    import ray as _ray
except ImportError as error:
    raise UnavailableError(
        f"overspill.cluster works on Ray, which cannot be imported: {error}",
        remedy='pip install "overspill[ray]"',
    ) from error

del _ray

__all__: list[str] = []
