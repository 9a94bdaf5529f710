from __future__ import annotations

import functools
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import receivers
import torch
import torch.multiprocessing as mp

import overspill as ov
from overspill.errors import StaleFileError, UnsupportedTensorError
from overspill.linux.mapping import map_file
from overspill.tensors import pickling
from overspill.tensors.dtypes import MAPPABLE_DTYPES
from overspill.tensors.layouts import bytes_of
from overspill.tensors.mapping import wrap_mapping

METHODS = ["fork", "spawn", "forkserver"]
STRATEGIES = ["file_descriptor", "file_system"]
WAIT_S = 120

Spawned = Callable[[list[Any]], tuple[Any, ...]]


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy(before)


def close(*queues: Any) -> None:
    for queue in queues:
        queue.close()
        queue.join_thread()


def exchange(method: str, message: list[Any], *, pipe: bool = False) -> tuple[Any, ...]:
    """Send a message to a child of this kind, and give its answer."""
    context = mp.get_context(method)
    answers = context.Queue()
    if pipe:
        mine, theirs = context.Pipe()
    else:
        mine = theirs = context.Queue()
    child = context.Process(target=receivers.answer, args=(theirs, answers))
    child.start()
    (mine.send if pipe else mine.put)(message)
    got = answers.get(timeout=WAIT_S)
    child.join(WAIT_S)
    assert child.exitcode == 0
    child.close()
    close(answers)
    if pipe:
        mine.close()
        theirs.close()
    else:
        close(mine)
    return tuple(got)


@pytest.fixture(scope="module")
def spawned() -> Iterator[Spawned]:
    """Sends messages to one spawned child, which takes seconds to start, and gives its answers."""
    context = mp.get_context("spawn")
    messages, answers = context.Queue(), context.Queue()
    child = context.Process(target=receivers.keep_answering, args=(messages, answers))
    child.start()

    def ask(message: list[Any]) -> tuple[Any, ...]:
        messages.put(message)
        return tuple(answers.get(timeout=WAIT_S))

    yield ask
    child.kill()
    child.join()
    child.close()
    close(messages, answers)


def assert_same(told: dict[str, Any], sent: torch.Tensor) -> None:
    expected = receivers.described(sent)
    for name in ("type", "shape", "stride", "offset", "dtype", "grad", "conj", "neg", "filename"):
        assert told[name] == expected[name], name
    assert told["bytes"] == expected["bytes"]


def views(spilled: torch.Tensor) -> list[torch.Tensor]:
    return [spilled, spilled[1:3], spilled.t(), spilled[2, 1], spilled[:0], spilled[::2, ::3]]


@pytest.mark.parametrize("pipe", [False, True], ids=["queue", "pipe"])
@pytest.mark.parametrize("method", METHODS)
def test_views_cross_by_path_over_one_mapping(
    method: str, pipe: bool, strategy: str, spill_dir: Path
) -> None:
    sent = views(ov.spill_tensor_to_disk(torch.randn(8, 12), required=True))
    kind, told, maps = exchange(method, sent, pipe=pipe)
    assert kind == "got"
    for one, tensor in zip(told, sent, strict=True):
        assert_same(one, tensor)
    assert len({one["base"] for one in told}) == 1
    assert list(maps.values()) == [1]


@pytest.mark.parametrize("method", METHODS)
def test_views_among_the_arguments_of_a_process_arrive_over_one_mapping(
    method: str, strategy: str, spill_dir: Path
) -> None:
    sent = views(ov.spill_tensor_to_disk(torch.randn(8, 12), required=True))[:3]
    context = mp.get_context(method)
    answers = context.Queue()
    child = context.Process(target=receivers.answer_arguments, args=(answers, *sent))
    child.start()
    kind, told, maps = answers.get(timeout=WAIT_S)
    child.join(WAIT_S)
    assert (kind, child.exitcode) == ("got", 0)
    for one, tensor in zip(told, sent, strict=True):
        assert_same(one, tensor)
    assert list(maps.values()) == [1]
    child.close()
    close(answers)


@pytest.mark.parametrize("method", METHODS)
def test_handles_cross_in_any_pickle(method: str, spill_dir: Path) -> None:
    sent = views(ov.spill_tensor_to_disk(torch.randn(8, 12), required=True))
    kind, told, maps = exchange(method, [ov.handle(tensor) for tensor in sent])
    assert kind == "got"
    for one, tensor in zip(told, sent, strict=True):
        assert_same(one, tensor)
    assert list(maps.values()) == [1]


def test_flags_and_parameters_cross(spawned: Spawned, spill_dir: Path, strategy: str) -> None:
    real = ov.spill_tensor_to_disk(torch.randn(6, 4), required=True)
    complex_ = ov.spill_tensor_to_disk(torch.randn(6, dtype=torch.complex64), required=True)
    sent = [
        real.detach().requires_grad_(),
        torch.nn.Parameter(real),
        torch.nn.Parameter(real, requires_grad=False),
        complex_.conj(),
        complex_.conj()[1::2],
        complex_.conj().imag,
    ]
    assert [one.is_conj() for one in sent[3:]] == [True, True, False] and sent[5].is_neg()
    kind, told, _maps = spawned(sent)
    assert kind == "got"
    for one, tensor in zip(told, sent, strict=True):
        assert_same(one, tensor)


def test_what_keeps_its_storage_inside_crosses_by_path_too(
    spawned: Spawned, strategy: str, spill_dir: Path
) -> None:
    values = ov.spill_tensor_to_disk(torch.arange(1.0, 5.0), required=True)
    marked = values.as_subclass(receivers.Marked)
    kind, told, _maps = spawned([marked, torch.nn.Buffer(values)])
    assert kind == "got"
    assert [one["filename"] for one in told] == [values.untyped_storage().filename] * 2
    assert told[0]["type"] == "Marked"
    csr = torch.sparse_csr_tensor(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), values)
    back = ForkingPickler.loads(ForkingPickler.dumps(csr))
    assert torch.equal(back.to_dense(), csr.to_dense())
    assert back.values().untyped_storage().filename == values.untyped_storage().filename


@pytest.mark.parametrize("dtype", MAPPABLE_DTYPES, ids=str)
def test_every_dtype_crosses(dtype: torch.dtype, spill_dir: Path) -> None:
    tensor = ov.allocate_disk_backed((3, 5), dtype, required=True)
    bytes_of(tensor).copy_(torch.arange(15 * dtype.itemsize) % 2)
    for back in (
        ForkingPickler.loads(ForkingPickler.dumps(tensor.t())),
        pickle.loads(pickle.dumps(ov.handle(tensor.t()))).open(),
    ):
        assert (back.dtype, back.shape, back.stride()) == (dtype, (5, 3), (1, 5))
        assert back.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("method", METHODS)
def test_zero_sizes_cross(method: str, spill_dir: Path) -> None:
    shapes = [(0,), (0, 100), (3, 0)]
    kind, told, _maps = exchange(method, [torch.empty(one, dtype=torch.int16) for one in shapes])
    assert kind == "got" and [one["shape"] for one in told] == shapes
    assert {one["dtype"] for one in told} == {"torch.int16"}


@pytest.mark.parametrize("method", METHODS)
def test_writes_are_seen_by_both(method: str, spill_dir: Path) -> None:
    spilled = ov.spill_tensor_to_disk(torch.arange(10), required=True)
    context = mp.get_context(method)
    queue, done = context.Queue(), context.Queue()
    child = context.Process(target=receivers.write_first, args=(queue, done))
    child.start()
    queue.put([spilled])
    done.get(timeout=WAIT_S)
    assert int(spilled[0]) == 77
    child.join(WAIT_S)
    close(queue, done)


def test_what_comes_back_is_the_senders_own_mapping(spill_dir: Path) -> None:
    spilled = ov.spill_tensor_to_disk(torch.arange(10), required=True)
    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=receivers.echo, args=(queue, answers))
    child.start()
    queue.put([spilled[2:]])
    (back,) = answers.get(timeout=WAIT_S)
    queue.put(None)
    assert back.data_ptr() == spilled[2:].data_ptr()
    child.join(WAIT_S)
    close(queue, answers)


def test_private_mappings_cross_as_private_mappings(
    spawned: Spawned, tmp_path: Path, no_spill_dir: None
) -> None:
    path = tmp_path / "array"
    path.write_bytes(bytes(4096) + torch.arange(64.0).numpy().tobytes())
    mapping = map_file(path, nbytes=4096 + 256)
    sent = wrap_mapping(mapping, dtype=torch.float32, shape=(8, 8), payload_offset=4096)
    kind, told, _maps = spawned([sent, sent[3:], sent.t()])
    assert kind == "got"
    for one, tensor in zip(told, (sent, sent[3:], sent.t()), strict=True):
        assert_same(one, tensor)
    assert len({one["base"] for one in told}) == 1
    back = pickle.loads(pickle.dumps(ov.handle(sent[3:]))).open()
    assert back.data_ptr() == sent[3:].data_ptr()


@pytest.mark.parametrize("count", [1, 1 << 10, 1 << 24])
def test_the_payload_is_under_a_kibibyte_whatever_the_size(count: int, spill_dir: Path) -> None:
    tensor = ov.allocate_disk_backed((count, 2), torch.float32, required=True)
    for view in (tensor, tensor.t(), tensor[::2]):
        handle = ov.handle(view)
        assert len(ForkingPickler.dumps(view)) < 1024
        assert len(pickle.dumps(handle)) < 1024
        assert len(cloudpickle.dumps(handle)) < 1024
        assert len(repr(handle)) < 300
    assert cloudpickle.loads(cloudpickle.dumps(ov.handle(tensor))) == ov.handle(tensor)


def test_everything_else_goes_torchs_own_way(
    spawned: Spawned, spill_dir: Path, strategy: str
) -> None:
    stock = torch.multiprocessing.reductions
    tensor = torch.arange(10)
    kept = ForkingPickler._extra_reducers[torch.Tensor](tensor)
    assert kept[0] is stock.rebuild_tensor
    assert ForkingPickler._extra_reducers[torch.Tensor](torch.empty(2, device="meta"))[0] is (
        stock.rebuild_meta_tensor
    )
    kind, told, _maps = spawned([tensor])
    assert kind == "got" and told[0]["filename"] is None
    with pytest.raises(RuntimeError, match="non-leaf"):
        ForkingPickler.dumps(torch.ones(3, requires_grad=True) * 2)


def test_registering_again_wraps_nothing_twice() -> None:
    before = dict(ForkingPickler._extra_reducers)
    pickling.register_reducers()
    assert dict(ForkingPickler._extra_reducers) == before


def test_nothing_is_registered_with_copyreg() -> None:
    import copyreg

    assert not {torch.Tensor, torch.nn.Parameter, torch.UntypedStorage} & set(
        copyreg.dispatch_table
    )


def test_a_users_own_mapping_crosses_by_path_while_spilling_is_on(
    spawned: Spawned, tmp_path: Path, spill_dir: Path
) -> None:
    path = tmp_path / "own"
    path.write_bytes(torch.arange(20.0).numpy().tobytes())
    tensor = torch.from_file(str(path), shared=True, size=20)
    kind, told, _maps = spawned([tensor[5:]])
    assert kind == "got"
    assert_same(told[0], tensor[5:])
    path.unlink()
    kind, name, _text = spawned([tensor])
    assert (kind, name) == ("error", "StaleFileError")


def test_a_users_private_mapping_arrives_through_a_queue(
    spawned: Spawned, strategy: str, tmp_path: Path, no_spill_dir: None
) -> None:
    """torch's own reducer fails in the feeder thread, and the receiver waits for ever."""
    path = tmp_path / "own"
    path.write_bytes(torch.arange(20.0).numpy().tobytes())
    tensor = torch.from_file(str(path), shared=False, size=20)
    kind, told, _maps = spawned([tensor[5:]])
    assert kind == "got"
    assert_same(told[0], torch.arange(20.0)[5:])


def test_a_users_shared_mapping_is_refused_while_spilling_is_off(
    spawned: Spawned, tmp_path: Path, no_spill_dir: None
) -> None:
    path = tmp_path / "own"
    path.write_bytes(bytes(80))
    tensor = torch.from_file(str(path), shared=True, size=20)
    with pytest.raises(UnsupportedTensorError, match="OVERSPILL_DIR"):
        ForkingPickler.dumps(tensor)
    kind, name, text = spawned([tensor])  # in the feeder thread: no hang
    assert (kind, name) == ("error", "UnsupportedTensorError") and str(path) in text


def test_a_users_own_mapping_that_lost_its_name_is_refused(
    spawned: Spawned, tmp_path: Path, spill_dir: Path
) -> None:
    path = tmp_path / "own"
    path.write_bytes(bytes(80))
    tensor = torch.from_file(str(path), shared=True, size=20)
    path.rename(tmp_path / "elsewhere")
    path.write_bytes(bytes(80))
    with pytest.raises(StaleFileError, match="no longer the file"):
        ForkingPickler.dumps(tensor)
    kind, name, _text = spawned([tensor])  # in the feeder thread: no hang
    assert (kind, name) == ("error", "StaleFileError")


class TestStaleFiles:
    """The receiver gets an error, never data and never a wait without end."""

    @pytest.fixture(params=["gone", "replaced", "cut", "grown"])
    def spoil(self, request: pytest.FixtureRequest) -> Callable[[Path], None]:
        def act(path: Path) -> None:
            nbytes = path.stat().st_size
            if request.param == "gone":
                path.unlink()
            elif request.param == "replaced":  # ext4 reuses the inode at once
                path.unlink()
                path.write_bytes(bytes(nbytes))
            else:
                with path.open("r+b") as file:
                    file.truncate(nbytes // 2 if request.param == "cut" else nbytes * 2)

        return act

    @pytest.mark.parametrize("method", METHODS)
    def test_through_a_queue(
        self, method: str, spoil: Callable[[Path], None], spill_dir: Path, spawned: Spawned
    ) -> None:
        spilled = ov.spill_tensor_to_disk(torch.arange(1000), required=True)
        path = Path(spilled.untyped_storage().filename)
        spoil(path)
        listing = sorted(path.parent.iterdir())
        ask = spawned if method == "spawn" else functools.partial(exchange, method)
        kind, name, text = ask([spilled])
        assert (kind, name) == ("error", "StaleFileError")
        assert str(path) in text
        assert sorted(path.parent.iterdir()) == listing  # the missing file was not created

    def test_through_a_handle(self, spoil: Callable[[Path], None], spill_dir: Path) -> None:
        spilled = ov.spill_tensor_to_disk(torch.arange(1000), required=True)
        handle = pickle.loads(pickle.dumps(ov.handle(spilled)))
        path = Path(spilled.untyped_storage().filename)
        del spilled
        spoil(path)
        with pytest.raises(StaleFileError, match=path.name):
            handle.open()


class TestRefusedSends:
    def test_a_non_leaf_is_refused_at_the_send(self, spill_dir: Path) -> None:
        leaf = ov.spill_tensor_to_disk(torch.ones(4), required=True).requires_grad_()
        held = leaf.view(2, 2)
        assert ov.is_disk_backed(held) and not held.is_leaf
        with pytest.raises(UnsupportedTensorError, match="no leaf"):
            ForkingPickler.dumps(held)
        with pytest.raises(UnsupportedTensorError, match="no leaf"):
            ov.handle(held)

    def test_from_a_feeder_thread_the_error_reaches_the_receiver(self, spill_dir: Path) -> None:
        leaf = ov.spill_tensor_to_disk(torch.ones(4), required=True).requires_grad_()
        queue = mp.get_context("spawn").Queue()
        queue.put(leaf.view(2, 2))
        with pytest.raises(UnsupportedTensorError, match="no leaf"):
            queue.get(timeout=WAIT_S)
        close(queue)

    @pytest.mark.parametrize("held", [torch.ones(3), torch.empty(0), "tensor", None])
    def test_what_is_not_disk_backed_has_no_handle(self, held: Any) -> None:
        with pytest.raises(UnsupportedTensorError, match="spill_tensor_to_disk"):
            ov.handle(held)

    def test_a_subclass_has_no_handle(self, spill_dir: Path) -> None:
        spilled = ov.spill_tensor_to_disk(torch.ones(4), required=True)
        with pytest.raises(UnsupportedTensorError, match="Marked"):
            ov.handle(spilled.as_subclass(receivers.Marked))


def test_threads_may_spill_and_send_at_once(spill_dir: Path) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for step in range(20):
            spilled = ov.spill_tensor_to_disk(torch.full((100,), number), required=True)
            back = ForkingPickler.loads(ForkingPickler.dumps(spilled[step:]))
            if back.tolist() != [number] * (100 - step):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_and_a_manager_and_a_dataloader(method: str, spill_dir: Path) -> None:
    spilled = ov.spill_tensor_to_disk(torch.arange(64).view(16, 4), required=True)
    context = mp.get_context(method)
    with context.Pool(1) as pool:
        assert pool.map(receivers.first_of, list(spilled.view(-1)[None])) == [(0, True)]
        pool.close()
        pool.join()
    loader = torch.utils.data.DataLoader(
        receivers.Rows(spilled), batch_size=4, num_workers=2, multiprocessing_context=method
    )
    rows, backed = zip(*loader, strict=True)
    assert torch.equal(torch.cat(rows), spilled)
    assert all(bool(flag.all()) for flag in backed)


def test_a_checkpoint_of_a_disk_backed_model_loads_without_its_files(spill_dir: Path) -> None:
    model = torch.nn.Linear(4, 4)
    weight = ov.spill_tensor_to_disk(model.weight, required=True)
    model.weight = torch.nn.Parameter(weight)
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    Path(weight.untyped_storage().filename).unlink()
    saved.seek(0)
    assert torch.equal(torch.load(saved)["weight"], model.weight)
