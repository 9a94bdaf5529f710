from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.checksum import crc32c


@pytest.mark.parametrize(
    ("text", "checksum"),
    [  # RFC 3720, appendix B.4
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 7])
def test_published_checksums(text: bytes, checksum: int, before: int) -> None:
    held = np.frombuffer(b"?" * before + text + b"??", np.uint8)
    assert crc32c(held, before, before + len(text)) == checksum


def test_every_length_and_a_flipped_bit() -> None:
    """Against one byte at a time, so that every tail beside the steps of eight is met."""
    rng = np.random.default_rng(1)
    for length in range(40):
        text = rng.integers(0, 256, length, np.uint8)
        assert crc32c(text, 0, length) == bytewise(text.tobytes())
        if length:
            text[length // 2] ^= 16
            assert crc32c(text, 0, length) == bytewise(text.tobytes())


def bytewise(text: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
