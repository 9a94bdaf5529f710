"""TFRecord files as protocol buffers have them, written by the reference library's own encoder."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from overspill.kernels.checksum import crc32c


def _messages() -> dict[str, Any]:
    """tf.Example, whose definition is public, without the package it comes in."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", syntax="proto3", package="t")
    field = descriptor_pb2.FieldDescriptorProto
    lists = [("BytesList", field.TYPE_BYTES), ("FloatList", field.TYPE_FLOAT)]
    for name, kind in [*lists, ("Int64List", field.TYPE_INT64)]:
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, type=kind, label=field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("bytes_list", "float_list", "int64_list"), 1):
        kind = name.title().replace("_", "")
        feature.field.add(
            name=name,
            number=number,
            type=field.TYPE_MESSAGE,
            type_name=f".t.{kind}",
            label=field.LABEL_OPTIONAL,
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    _submessage(entry, "value", 2, ".t.Feature", field.LABEL_OPTIONAL)
    _submessage(features, "feature", 1, ".t.Features.FeatureEntry", field.LABEL_REPEATED)
    example = file.message_type.add(name="Example")
    _submessage(example, "features", 1, ".t.Features", field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClassesForFiles(["example.proto"], pool)


def _submessage(message: Any, name: str, number: int, kind: str, label: Any) -> None:
    field = descriptor_pb2.FieldDescriptorProto
    message.field.add(
        name=name, number=number, type=field.TYPE_MESSAGE, type_name=kind, label=label
    )


Example = _messages()["t.Example"]


def example(features: Mapping[str, Any]) -> bytes:
    """One Example; a feature is a number, text, or a list of these, [] an empty list of floats."""
    held = Example()
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        feature = held.features.feature[name]
        if values and isinstance(values[0], str | bytes):
            coded = [v.encode() if isinstance(v, str) else v for v in values]
            feature.bytes_list.value.extend(coded)
        elif values and isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        elif values:
            feature.float_list.value.extend(values)
        else:
            feature.float_list.SetInParent()
    return bytes(held.SerializeToString())


def record(payload: bytes) -> bytes:
    """A record's frame."""
    length = struct.pack("<Q", len(payload))
    return length + _masked(length) + payload + _masked(payload)


def records(examples: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(record(example(features)) for features in examples)


def _masked(text: bytes) -> bytes:
    crc = int(crc32c(np.frombuffer(text, np.uint8), 0, len(text)))
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
