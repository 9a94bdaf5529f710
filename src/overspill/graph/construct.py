"""Building a dataset from Python: the build's own process, a progress bar, the opened result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

from overspill.build.child import run_build
from overspill.build.describe import BuildOptions, describe_build
from overspill.build.sending.outgoing import Outgoing
from overspill.graph.dataset import Dataset, open_dataset
from overspill.graph.progress_bar import Event, event_listener
from overspill.graph.sent_tensors import as_numpy


def build_dataset(
    out: str | Path,
    *,
    edges: Any,
    node_features: Mapping[Any, Any] | None = None,
    edge_features: Mapping[Any, Any] | None = None,
    memory_limit: str | int | None = None,
    progress: bool | Callable[[Event], None] = False,
    **options: Unpack[BuildOptions],
) -> Dataset:
    """Build a graph dataset from edges, in a fixed amount of memory.

    Reads the edges once a layout (once more where ids are remapped, nodes are renumbered, or only
    the edges of several types tell how many nodes there are), writes and reads back 8 bytes an edge
    of scratch space in `out`, 12 with edge ids, and writes the rows: 4 bytes an edge, 8 a node.
    Beyond 2**31 - 1 nodes an id takes 8 bytes. Rows that find their place out of core, those of
    edge features, of keyed node features and of renumbered nodes, are written and read back once
    beside that, and so is everything that comes from memory, at 16 bytes an edge from an iterator.
    But integer edges from an iterator (or a list of chunks) are read as they come and stored
    nowhere where they are needed once: those of the only edge type, with dense ids, for one layout
    in the given order, beside features that are files or arrays. Remapping takes up to 16 bytes an
    edge for sorted runs, as much again each time that runs are merged in groups, 8 bytes a distinct
    id for their merge, and 8 that stay; for text, the distinct strings twice more. The memory is
    that of a process of its own, at most `memory_limit` of anonymous memory, whatever the number of
    edges and nodes; the very first build compiles its kernels first, which takes seconds and about
    110 MiB. The same input gives the same array files, byte for byte, whatever the memory and the
    number of threads. Several builds may run at once, from threads or processes, into different
    directories.

    Args:
        out: The dataset's directory: absent, empty, or an unfinished build, which starts over.
        edges: A file, a glob pattern, a directory of Parquet files, or several; an array or tensor
            of shape (2, E) or (E, 2), two of one dimension, an iterator of such chunks, a pyarrow
            Table or RecordBatchReader, anything with an Arrow stream (polars, DuckDB); or a mapping
            of (source type, relation, target type) to any of these. Files: Parquet, CSV and TSV
            with or without a header, SNAP text (these also as .gz and .zst), .npy, .npz, Arrow, and
            TFRecord shards of tf.Example.
        node_features: Name -> a .npy file or array whose first axis is the nodes, or `Columns` of a
            table, in the order of the nodes or with a column of their raw ids; or node type -> such
            a mapping.
        edge_features: Name -> a .npy file or array whose first axis is the input edges, or
            `Columns` of the edge files or of a table; or edge type -> such a mapping. Moved into
            the order of each layout; edge ids are then kept too.
        memory_limit: The most anonymous memory of the build's process, its imports included, such
            as "1GiB"; None takes the setting's, and in any case what the system and every control
            group leave.
        progress: True shows a bar for each phase on stderr; a callable gets the events itself, the
            first of which is the plan: passes, buckets, projected memory and disk.
        **options: `num_nodes`: a number, or one by node type. `ids`, likewise: "dense" (0 to the
            number of nodes - 1, checked), "remap" (any int64, made dense in their order, or
            strings, in the order of their hashes; the raw ids are kept), "text" (strings, of CSV
            too) or "auto" (remap for strings, and for SNAP text where nothing tells how many nodes
            there are; else dense). `columns`: names of the source and target columns, or these by
            edge type. `edge_axis`: 1 for (2, E) and 0 for (E, 2) where the shape does not tell.
            `header`: whether CSV files name their columns. `layout`: "csc", the in-neighbours of
            each node, "csr", the out-neighbours, or both. `to_undirected`: each edge runs both
            ways, a self loop once. `edge_ids`: keep which input row each edge came from.
            `duplicates`: "keep" parallel edges, "drop" all but the first, or "count" them.
            `self_loops`: "keep" or "drop". `non_finite`: "keep" (and count) infinite and NaN
            features, or "error". `sort_within_row`: neighbours by id, else in input order. `order`:
            "degree" renumbers nodes by falling in-degree; raw ids stay available. `threads`: the
            most that compute at a time. `resume`: take up an unfinished build of the same files and
            options at its last finished step (one that read from memory starts over). What was
            counted stands in the manifest's notes.

    Returns:
        The opened dataset.

    Raises:
        InputError: An input is wrong: an id out of range, negative, null or no integer; a missing
            column; a wrong number of rows, a key without node or a node without key; no edges and
            no number of nodes. Names file, row, column and value. Rows count data rows from 1
            (CSV), lines from 1 (SNAP) or positions from 0 (all others).
        OutputDirError: `out` holds something else, a finished dataset, or, to be resumed, another
            build; or lies in memory.
        NoRoomError: The smallest plan needs more memory than allowed; names how much.
        DiskRefusedError: The disk refused, or cannot hold what the build projects; where sizes are
            known, and of text files by an estimate, that is told before anything is written.
        BuildFailedError: The build's process was killed; what it left cannot be opened as data, and
            the next build starts over or resumes it.
        SettingsError: The memory limit's setting cannot be understood.
        UnavailableError: This system does not tell what memory or disk there is.
        KeyboardInterrupt: Ctrl-C, once the build's process has ended; a note, which tracebacks
            show, says what is left and how to go on.

    An error of an iterator that was passed comes out as it is, once the build has been undone.
    """
    streams = Outgoing(as_numpy)
    spec = describe_build(
        out,
        edges=edges,
        node_features=node_features,
        edge_features=edge_features,
        memory_limit=memory_limit,
        streams=streams,
        **options,
    )
    with event_listener(progress) as listen:
        run_build(spec, streams=streams, on_event=listen)
    return open_dataset(spec.out)
