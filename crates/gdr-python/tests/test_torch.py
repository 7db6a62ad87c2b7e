"""gdr.torch: weights of models in host memory, published and pulled by gdr's own RDMA."""

import signal
import subprocess
import sys
import threading

import gdr
import pytest
from conftest import LIMIT_S

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing of gdr.torch was tested")

import gdr.torch  # noqa: E402


def model(seed=0):
    """A small model of two types of elements, with weights that share memory."""
    torch.manual_seed(seed)
    made = torch.nn.Sequential(
        torch.nn.Embedding(10, 6),
        torch.nn.LayerNorm(6),
        torch.nn.Linear(6, 3).to(torch.bfloat16),
        torch.nn.Linear(6, 10, bias=False),
    )
    made[3].weight = made[0].weight
    made.register_buffer("count", torch.tensor(3))
    return made


def equal(left, right):
    left, right = left.state_dict(), right.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_model_is_pulled_whole_cast_and_renamed():
    trained, other = model(1), model(2)
    with gdr.torch.publish(trained, "policy") as publisher:
        publisher.push(7)
        assert not equal(trained, other)
        assert gdr.torch.pull(publisher.source, into=other, timeout=LIMIT_S) == 7
        assert equal(trained, other)
        renamed = {"w": torch.empty(3, 6, dtype=torch.float64)}
        for mapping in ({"w": "2.weight"}, lambda name: "2.weight"):
            renamed["w"].zero_()
            gdr.torch.pull(publisher.source, renamed, mapping=mapping, timeout=LIMIT_S)
            assert torch.equal(renamed["w"], trained[2].weight.double())
        new = gdr.torch.pull(publisher.source, dtype=torch.float16, timeout=LIMIT_S)
        assert torch.equal(new["0.weight"], trained[0].weight.half())
        assert new["count"].item() == 3 and new.keys() == trained.state_dict().keys()


def test_views_that_are_not_contiguous_are_published_and_filled():
    source = torch.arange(24.0).view(4, 6).t()
    target = torch.zeros(8, 6)[::2].t()
    with gdr.torch.publish({"w": source}, "w") as publisher:
        publisher.push(1)
        gdr.torch.pull(publisher.source, {"w": target}, timeout=LIMIT_S)
        assert torch.equal(source, target)


def test_a_reader_follows_and_never_mixes_two_pushes():
    tensors = {str(number): torch.zeros(1000 + number, dtype=torch.int64) for number in range(20)}
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    ends = threading.Event()
    with gdr.torch.publish(tensors, "w") as publisher:
        publisher.push(0)

        def train():
            step = 0
            while not ends.is_set():
                step += 1
                for tensor in tensors.values():
                    tensor.fill_(step)
                publisher.push(step, timeout=LIMIT_S)

        trainer = threading.Thread(target=train)
        trainer.start()
        try:
            last = -1
            for _, step in zip(range(200), gdr.torch.follow(publisher.source, into, timeout=LIMIT_S)):
                assert step > last
                last = step
                assert all((tensor == step).all() for tensor in into.values()), step
        finally:
            ends.set()
            trainer.join()


def test_owners_of_parts_are_read_by_readers_of_others():
    whole = torch.arange(12.0 * 10).view(12, 10)
    with gdr.ObjectServer() as server:
        owners = [
            gdr.torch.publish(
                {"w": whole[row : row + 6, column : column + 5], "same": torch.ones(3)},
                f"rank.{row}.{column}",
                listen=server,
                parts={"w": ((12, 10), (row, column))},
            )
            for row in (0, 6)
            for column in (0, 5)
        ]
        sources = [owner.source for owner in owners]
        for owner in owners:
            owner.push(3)
        for row in range(0, 12, 4):
            rows = {"w": torch.empty(4, 10), "same": torch.empty(3)}
            assert gdr.torch.pull(sources, rows, parts={"w": ((12, 10), (row, 0))}, timeout=LIMIT_S) == 3
            assert torch.equal(rows["w"], whole[row : row + 4]) and rows["same"].sum() == 3
        columns = {"w": torch.empty(12, 3, dtype=torch.float64)}
        gdr.torch.pull(sources, columns, parts={"w": ((12, 10), (0, 4))}, timeout=LIMIT_S)
        assert torch.equal(columns["w"], whole[:, 4:7].double())
        assert torch.equal(gdr.torch.pull(sources, timeout=LIMIT_S)["w"], whole)

        with pytest.raises(ValueError, match="w: 30 of its 120 elements are published by no owner"):
            gdr.torch.pull(sources[:3], {"w": torch.empty(12, 10)}, timeout=LIMIT_S)
        # One rank is ahead: its step is waited for, and then named.
        owners[0].push(4)
        with pytest.raises(gdr.Error, match="published step 3, and another one 4"):
            gdr.torch.pull(sources, {"w": torch.empty(12, 10)}, timeout=0.5)
        with gdr.torch.Reader(sources, {"w": torch.empty(12, 10)}, timeout=LIMIT_S) as reader:
            late = threading.Timer(0.2, lambda: [owner.push(4) for owner in owners[1:]])
            late.start()
            assert reader.pull(timeout=LIMIT_S) == 4
            late.join()


def test_a_part_moves_its_bytes_only():
    tall = torch.arange(float(1024 * 1024)).view(1024, 1024)
    wide = torch.arange(float(64 * 16384)).view(64, 16384)
    with gdr.torch.publish({"tall": tall, "wide": wide, "odd": torch.ones(3)}, "w") as publisher:
        publisher.push(4)
        into = {"tall": torch.empty(256, 1024), "wide": torch.empty(64, 4096)}
        parts = {"tall": ((1024, 1024), (512, 0)), "wide": ((64, 16384), (0, 8192))}
        with gdr.torch.Reader(publisher.source, into, parts=parts, timeout=LIMIT_S) as reader:
            # A quarter of each, and the step.
            assert reader.nbytes == 2 * (1 << 20) + 8
            assert reader.pull(timeout=LIMIT_S) == 4
        assert torch.equal(into["tall"], tall[512:768]) and torch.equal(into["wide"], wide[:, 8192:12288])
        # Columns of a few bytes are read with those between them.
        into = {"tall": torch.empty(1024, 2)}
        parts = {"tall": ((1024, 1024), (0, 7))}
        with gdr.torch.Reader(publisher.source, into, parts=parts, timeout=LIMIT_S) as reader:
            assert reader.nbytes == 4 * (1 << 20) + 8
            reader.pull(timeout=LIMIT_S)
        assert torch.equal(into["tall"], tall[:, 7:9])
        with gdr.torch.Reader(publisher.source, timeout=LIMIT_S) as reader:
            assert reader.nbytes == publisher.nbytes


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ({}, ValueError, "no tensors"),
        ({"a": 3}, TypeError, "a is a int"),
        ({"a": torch.empty(2, device="meta")}, ValueError, "a is on the meta device"),
        ({"a": torch.eye(2).to_sparse()}, ValueError, "a is not a dense tensor"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, ValueError, "a has elements of torch.complex128"),
        ({"gdr.step": torch.zeros(1)}, ValueError, "gdr.step is the name of the step"),
    ],
)
def test_what_cannot_be_published_names_the_tensor(state, error, words):
    with pytest.raises(error, match=words):
        gdr.torch.publish(state, "w")


class Elsewhere(torch.Tensor):
    """A tensor that says that it is in memory of a GPU."""

    device = property(lambda self: torch.device("cuda:0"))


def test_a_tensor_on_another_device_than_the_others_is_named():
    cpu, gpu = torch.zeros(2), torch.zeros(2).as_subclass(Elsewhere)
    for common, other, words in (
        (cpu, gpu, "c is on cuda:0, and other tensors on cpu"),
        (gpu, cpu, "c is on cpu, and other tensors on cuda:0"),
    ):
        state = {"a": common, "b": common, "c": other}
        with pytest.raises(ValueError, match=words):
            gdr.torch.publish(state, "w")
        with gdr.torch.publish({name: torch.zeros(2) for name in state}, "w") as publisher:
            publisher.push(1)
            with pytest.raises(ValueError, match=words):
                gdr.torch.pull(publisher.source, state, timeout=LIMIT_S)


def test_a_limit_is_of_a_home_and_serves():
    state = {"w": torch.arange(4.0)}
    with gdr.torch.publish(state, "w", limit=10**9) as publisher:
        publisher.push(1)
        into = {"w": torch.empty(4)}
        assert gdr.torch.pull(publisher.source, into, timeout=LIMIT_S) == 1
        assert torch.equal(into["w"], state["w"])
    with gdr.ObjectServer() as server:
        for offer in (
            lambda: gdr.torch.publish(state, "w", listen=server, limit=1),
            lambda: gdr.torch.relay(f"{server.address}/w", listen=server, limit=1),
        ):
            with pytest.raises(ValueError, match="pass it to the gdr.ObjectServer"):
                offer()


def test_tensors_without_elements_have_a_step():
    with gdr.torch.publish({"a": torch.empty(0)}, "w") as publisher:
        publisher.push(5)
        assert gdr.torch.pull(publisher.source, {"a": torch.empty(0)}, timeout=LIMIT_S) == 5


def test_what_cannot_be_pulled_names_the_tensor():
    with gdr.torch.publish({"w": torch.zeros(4, 3)}, "w") as publisher:
        publisher.push(1)
        for into, words in (
            ({"w": torch.empty(3, 4)}, r"w has the shape \[3, 4\], and is published with \[4, 3\]"),
            ({"v": torch.empty(1)}, "v is published by no owner: w are"),
            ({"w": torch.empty(1, 3).expand(4, 3)}, "w has elements that share memory"),
            ({"w": torch.empty(4, 3, device="meta")}, "w is on the meta device"),
        ):
            with pytest.raises(ValueError, match=words):
                gdr.torch.pull(publisher.source, into, timeout=LIMIT_S)
        memory = torch.empty(20)
        with gdr.torch.publish({"a": torch.zeros(4), "b": torch.ones(4)}, "two") as two:
            two.push(1)
            into = {"a": memory[:4], "b": memory[2:6]}
            with pytest.raises(ValueError, match="a and b share a part of their memory"):
                gdr.torch.pull(two.source, into, timeout=LIMIT_S)
            # Beside each other, and in each other's gaps.
            for into in ({"a": memory[:4], "b": memory[4:8]}, {"a": memory[:8:2], "b": memory[1:9:2]}):
                gdr.torch.pull(two.source, into, timeout=LIMIT_S)
                assert torch.equal(into["a"], torch.zeros(4)) and torch.equal(into["b"], torch.ones(4))
        with pytest.raises(ValueError, match="names no object"):
            gdr.torch.pull("127.0.0.1:1", {"w": torch.empty(4, 3)})


def test_tensors_that_are_replaced_are_published_as_they_are_then():
    trained = model(1)
    with gdr.torch.publish(trained, "w") as publisher:
        into = model(2)
        for step in range(1, 5):
            with torch.no_grad():
                if step == 2:
                    trained[2].weight = torch.nn.Parameter(torch.full_like(trained[2].weight, 9))
                elif step == 3:
                    trained[1].bias.data = torch.full((6,), 4.0)
                elif step == 4:
                    trained[0].weight.add_(1)
            publisher.push(step)
            assert gdr.torch.pull(publisher.source, into, timeout=LIMIT_S) == step
            assert equal(trained, into), step


def test_a_model_that_changed_is_not_published():
    state = {"w": torch.zeros(4), "v": torch.zeros(2)}
    with gdr.torch.publish(state, "w") as publisher:
        state["w"] = torch.zeros(5)
        for _ in range(2):
            with pytest.raises(ValueError, match="w changed its shape"):
                publisher.push(1)
        del state["w"]
        with pytest.raises(ValueError, match="w came or went"):
            publisher.push(1)


RANK = """
import sys
import gdr.torch, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, empty

role, rank, world, store, *sources = sys.argv[1:]
torch.distributed.init_process_group("gloo", f"file://{store}", rank=int(rank), world_size=int(world))
matrix, vector = torch.arange(130.0).view(13, 10), torch.arange(7.0)
if role == "owner":
    mesh = init_device_mesh("cpu", (2, 2))
    state = {
        "tp": distribute_tensor(matrix, mesh, [Shard(0), Shard(1)]),
        "fsdp": distribute_tensor(matrix, mesh, [Shard(0), Shard(0)]),
        "same": distribute_tensor(vector, mesh, [Replicate(), Replicate()]),
    }
    with gdr.torch.publish(state, f"rank{rank}") as publisher:
        publisher.push(5)
        print(publisher.source, flush=True)
        sys.stdin.read()
else:
    mesh = init_device_mesh("cpu", (3,))
    state = {
        "tp": empty(13, 10, device_mesh=mesh, placements=[Shard(1)]),
        "fsdp": empty(13, 10, device_mesh=mesh, placements=[Shard(0)]),
        "same": torch.empty(7, dtype=torch.float64),
    }
    assert gdr.torch.pull(sources, state, timeout=120) == 5
    assert torch.equal(state["tp"].full_tensor(), matrix)
    assert torch.equal(state["fsdp"].full_tensor(), matrix)
    assert torch.equal(state["same"], vector.double())
"""


def test_dtensors_of_four_ranks_are_read_by_three_with_other_parts(tmp_path):
    def ranks(role, count, *sources):
        return [
            subprocess.Popen(
                [sys.executable, "-c", RANK, role, str(rank), str(count), str(tmp_path / role), *sources],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]

    owners = ranks("owner", 4)
    readers = []
    try:
        sources = [owner.stdout.readline().strip() for owner in owners]
        readers = ranks("reader", 3, *sources)
        assert [reader.wait(LIMIT_S) for reader in readers] == [0, 0, 0]
        for owner in owners:
            owner.stdin.close()
        assert [owner.wait(LIMIT_S) for owner in owners] == [0, 0, 0, 0]
    finally:
        for process in owners + readers:
            process.kill()
            process.wait()


TRAINER = """
import sys
import gdr.torch, torch
listen, step = sys.argv[1], int(sys.argv[2])
state = {"w": torch.zeros(1 << 20)}
publisher = gdr.torch.publish(state, "w", listen=listen)
while True:
    step += 1
    state["w"].fill_(step)
    publisher.push(step)
    if step == int(sys.argv[2]) + 1:
        print(publisher.source, flush=True)
"""


def start_trainer(listen="127.0.0.1:0", step=0):
    """A trainer that pushes without a pause, and its source once it has pushed."""
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, listen, str(step)], stdout=subprocess.PIPE, text=True
    )
    return trainer, trainer.stdout.readline().strip()


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_trainer_that_is_killed_ends_pulls_with_an_error():
    trainer, source = start_trainer()
    try:
        into = {"w": torch.empty(1 << 20)}
        with gdr.torch.Reader(source, into, timeout=LIMIT_S) as reader:
            reader.pull(timeout=LIMIT_S)
            trainer.send_signal(signal.SIGKILL)
            with pytest.raises((gdr.Gone, gdr.Stalled, gdr.NoAnswer)):
                while True:
                    step = reader.pull(timeout=5.0)
                    assert (into["w"] == step).all()
            # What was pulled last is whole.
            assert (into["w"] == into["w"][0]).all()
    finally:
        end(trainer)


def test_a_trainer_that_is_started_again_is_another_one_and_its_steps_are_none_of_the_first():
    trainer, source = start_trainer(step=1_000_000)
    try:
        into = {"w": torch.empty(1 << 20)}
        with gdr.torch.Reader(source, into, timeout=LIMIT_S) as reader:
            last = 0
            with pytest.raises((gdr.Gone, gdr.Stalled, gdr.NoAnswer)):
                for number, step in enumerate(reader.follow(timeout=LIMIT_S)):
                    assert step > last
                    last = step
                    assert (into["w"] == step).all()
                    if number == 3:
                        end(trainer)
                        trainer, again = start_trainer(source.partition("/")[0])
                        assert again == source
            # Nothing of the second run came as a step after the first one's.
            assert last > 1_000_000 and (into["w"] == last).all()
            for _ in range(2):
                with pytest.raises(gdr.Gone) as gone:
                    reader.pull(timeout=LIMIT_S)
                assert gone.value.reason == "restarted"
        assert 0 < gdr.torch.pull(source, into, timeout=LIMIT_S) < 1_000_000
        assert (into["w"] == into["w"][0]).all()
    finally:
        end(trainer)


def test_relays_serve_what_they_pulled_until_the_trainer_is_gone():
    trainer, source = start_trainer()
    wrong = []

    def read(source):
        into = {"w": torch.empty(1 << 20)}
        last, epoch = 0, 0
        with gdr.torch.Reader(source, into, timeout=LIMIT_S) as reader:
            for _ in range(20):
                step = reader.pull(timeout=LIMIT_S)
                if step < last or reader._sources[0].epoch < epoch or (into["w"] != step).any():
                    wrong.append((source, last, step))
                last, epoch = step, reader._sources[0].epoch

    try:
        with gdr.torch.relay(source, timeout=LIMIT_S) as one, gdr.torch.relay(source, "v", timeout=LIMIT_S) as two:
            assert two.source.endswith("/v") and one.source.endswith("/w")
            readers = [threading.Thread(target=read, args=[it.source]) for it in (one, one, two, two)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            assert not wrong
            with gdr.torch.Reader(one.source, {"w": torch.empty(1 << 20)}, timeout=LIMIT_S) as reader:
                reader.pull(timeout=LIMIT_S)
                assert one.readers == 1 and one.newest > 0
                one.wait(timeout=0.0)
                end(trainer)
                for relay in (one, two):
                    with pytest.raises((gdr.Gone, gdr.NoAnswer, gdr.Stalled)):
                        relay.wait(timeout=LIMIT_S)
                    assert relay.newest is None
                # The relay has the last push, and does not pass it on as if its trainer were there.
                with pytest.raises(gdr.Gone):
                    reader.pull(timeout=LIMIT_S)
    finally:
        end(trainer)
    with pytest.raises(ValueError, match="names no object"):
        gdr.torch.relay("127.0.0.1:1")


def test_a_checkpoint_of_a_file_is_pulled_without_a_step(tmp_path):
    # The header has an odd length, so the elements are aligned in the file by chance only.
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"h":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}}'
    content = len(header).to_bytes(8, "little") + header
    content += torch.tensor([1.5, 2.5]).numpy().tobytes() + b"\1\2\3"
    with gdr.ObjectServer() as server:
        server.object("file", len(content), checksum="sum64").publish_from(content)
        into = {"w": torch.empty(2), "h": torch.empty(3, dtype=torch.uint8)}
        with gdr.torch.Reader(f"{server.address}/file", into, timeout=LIMIT_S) as reader:
            # All of it, so that the checksum is compared.
            assert reader.nbytes == len(content)
            assert reader.pull(timeout=LIMIT_S) is None
        assert into["w"].tolist() == [1.5, 2.5] and into["h"].tolist() == [1, 2, 3]


def test_a_file_and_weights_with_steps_are_not_one_model():
    header = b'{"h":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
    content = len(header).to_bytes(8, "little") + header + b"\1\2\3"
    with gdr.ObjectServer() as server, gdr.torch.publish({"w": torch.ones(2)}, "w", listen=server) as publisher:
        publisher.push(1)
        server.object("file", len(content)).publish_from(content)
        into = {"w": torch.zeros(2), "h": torch.zeros(3, dtype=torch.uint8)}
        with pytest.raises(ValueError, match="a file without a step"):
            gdr.torch.pull([publisher.source, f"{server.address}/file"], into, timeout=LIMIT_S)
