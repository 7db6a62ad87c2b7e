"""gdr.ObjectServer and gdr.Link: named memory, by gdr's own RDMA on loopback addresses."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gdr
import pytest
from conftest import CPU, LIMIT_S, CudaArray, DlpackArray

KEY = bytes(range(32))
# Longer than any test runs.
HOURS = 36_000.0


@pytest.fixture
def server():
    with gdr.ObjectServer() as server:
        yield server


@pytest.fixture
def link(server):
    with gdr.Link(server.address, timeout=LIMIT_S) as link:
        yield link


def test_host_memory_is_published_awaited_and_read(server, link):
    weights = server.object("weights", 1 << 20)
    remote = link.open("weights", timeout=LIMIT_S)
    assert (remote.name, remote.nbytes, remote.newest(timeout=LIMIT_S)) == ("weights", 1 << 20, None)
    content = bytes(range(256)) * 4096
    first = weights.publish_from(content)
    assert remote.wait_newer(timeout=LIMIT_S) == first == weights.newest
    out = bytearray(1 << 20)
    assert remote.get_into(out, timeout=LIMIT_S) == first
    assert out == content
    part = bytearray(300)
    assert remote.read_at(5, part, timeout=LIMIT_S) == first
    assert part == content[5:305]
    extents = gdr.Extents([(7, 100, 200), (1000, 200, 0)])
    assert (len(extents), extents.nbytes) == (2, 300)
    assert remote.get_into(part, extents=extents, timeout=LIMIT_S) == first
    assert part == content[1000:1200] + content[7:107]
    with pytest.raises(ValueError, match="2 bytes at offset 1048575 exceed"):
        remote.get_into(part, extents=gdr.Extents([((1 << 20) - 1, 2, 0)]), timeout=LIMIT_S)
    second = weights.publish_from(bytearray(1 << 20))
    assert remote.wait_newer(first, timeout=LIMIT_S) == second
    assert remote.get(timeout=LIMIT_S) == (second, bytes(1 << 20))
    assert weights.readers == 1


def test_memory_that_is_registered_serves_many_gets_and_is_released(server, link):
    scalar = server.object("loss", 8, mode="live")
    out = bytearray(8)
    with link.memory(out) as memory:
        assert memory.nbytes == 8
        remote = link.open("loss", timeout=LIMIT_S)
        for number in range(1, 20):
            scalar.publish_from(number.to_bytes(8, "little"))
            remote.get_into(memory, timeout=LIMIT_S)
            assert int.from_bytes(out, "little") == number
        # It is exported, so that Python cannot move it.
        with pytest.raises(BufferError):
            out.append(0)
    out.append(0)
    with pytest.raises(ValueError, match="the memory is closed"):
        remote.get_into(memory, timeout=LIMIT_S)


def test_an_object_like_an_array_has_its_elements_shape_and_place(server, link):
    gpu = gdr.DeviceMemory(48, device=1)
    tensor = DlpackArray(gpu.address, (2, 3), code=2, bits=64)
    host = (ctypes.c_int16 * 6)()
    made = {
        "gpu": server.object("gpu", like=tensor),
        "host": server.object("host", like=memoryview(host).cast("B").cast("h", (2, 3))),
        "cpu": server.object("cpu", like=DlpackArray(ctypes.addressof(host), (6,), 4, 16, CPU)),
        "ring": server.object("ring", 64, device=0, mode="ring:4", when_full="block"),
    }
    infos = {info["name"]: info for info in link.list(timeout=LIMIT_S)}
    assert set(infos) == set(made)
    expected = {
        "gpu": ("f64", [2, 3], "gpu", 1),
        "host": ("i16", [2, 3], "host", None),
        "cpu": ("bf16", [6], "host", None),
        "ring": ("u8", [64], "gpu", 0),
    }
    for name, (element, shape, place, device) in expected.items():
        info = infos[name]
        assert (info["element"], info["shape"]) == (element, shape), name
        location = {"place": place, "device": device, "simulated": place == "gpu"}
        assert info["location"] == location, name
        assert made[name].info["path"]["method"] in {"host", "direct", "staged"}
    assert (infos["ring"]["mode"], infos["ring"]["when_full"]) == ("ring:4", "block")
    assert infos["gpu"]["mode"] == "latest" and infos["gpu"]["newest"] is None


def test_gpu_memory_is_published_by_a_stream_and_read_into_gpu_memory(server, link):
    source, out = gdr.DeviceMemory(1 << 16), gdr.DeviceMemory(1 << 16, kind="vmm")
    weights = server.object("weights", like=source, checksum="sum64")
    remote = link.open("weights", timeout=LIMIT_S)
    seen = None
    with gdr.map(source) as before, gdr.map(out) as after, link.memory(out) as memory:
        for number in range(1, 6):
            before.write(bytes([number]) * (1 << 16))
            epoch = weights.publish_from(source, None)
            assert remote.wait_newer(seen, timeout=LIMIT_S) == epoch
            assert remote.get_into(memory, timeout=LIMIT_S) == epoch
            assert after.read() == bytes([number]) * (1 << 16)
            seen = epoch


def test_a_peer_puts_what_it_may(server, link):
    page = server.object("page", 4096, access="read-write")
    remote = link.open("page", timeout=LIMIT_S)
    for source in [b"a" * 4096, bytearray(b"b" * 4096), gdr.DeviceMemory(4096)]:
        if isinstance(source, gdr.DeviceMemory):
            with gdr.map(source) as mapping:
                mapping.write(b"c" * 4096)
        epoch = remote.put_from(source, timeout=LIMIT_S)
        assert epoch == page.newest
    assert remote.get(timeout=LIMIT_S) == (epoch, b"c" * 4096)
    server.object("read-only", 8)
    with pytest.raises(gdr.Denied, match="permits this peer only to read") as denied:
        link.open("read-only", timeout=LIMIT_S).put_from(bytes(8), timeout=LIMIT_S)
    fields = (denied.value.name, denied.value.permitted, denied.value.asked)
    assert fields == ("read-only", "read", "read and write")


def test_failures_have_classes_and_fields(server, link):
    with pytest.raises(gdr.NoSuchObject) as missing:
        link.open("missing", timeout=LIMIT_S)
    assert (missing.value.name, missing.value.owner) == ("missing", server.address)
    assert isinstance(missing.value, LookupError)
    weights = server.object("weights", 8)
    remote = link.open("weights", timeout=LIMIT_S)
    with pytest.raises(gdr.Empty) as empty:
        remote.get_into(bytearray(8), timeout=LIMIT_S)
    assert empty.value.name == "weights"
    epoch = weights.publish_from(bytes(8))
    assert remote.wait_newer(timeout=LIMIT_S) == epoch
    # An owner that has not answered by then stalls: it may on a slow host, and not for long.
    for timeout in [0.5, 5.0, LIMIT_S]:
        with pytest.raises(TimeoutError) as late:
            remote.wait_newer(epoch, timeout=timeout)
        if late.type is gdr.NothingNewer:
            break
    assert (late.value.name, late.value.seen) == ("weights", epoch)
    for source in [bytes(9), gdr.DeviceMemory(8)]:
        with pytest.raises(ValueError):
            weights.publish_from(source)
    with pytest.raises(ValueError, match="9 bytes at offset 0 exceed the size of 8"):
        remote.read_at(0, bytearray(9), timeout=LIMIT_S)
    with pytest.raises(gdr.Error, match="object weights already exists"):
        server.object("weights", 8)
    weights.close()
    with pytest.raises(gdr.Gone) as gone:
        remote.newest(timeout=LIMIT_S)
    assert (gone.value.what, gone.value.reason) == ("the object weights", "closed")
    with pytest.raises(ValueError, match="the object is closed"):
        weights.publish_from(bytes(8))
    other = server.object("other", 8)
    last = link.open("other", timeout=LIMIT_S)
    server.close()
    with pytest.raises(gdr.Gone) as gone:
        last.newest(timeout=LIMIT_S)
    assert gone.value.reason == "disconnected"
    with pytest.raises(ValueError, match="the server is closed"):
        server.object("third", 8)
    with pytest.raises(gdr.Gone, match="closed its server") as gone:
        other.publish_from(bytes(8))
    assert (gone.value.what, gone.value.reason) == ("the object other", "server-closed")
    other.close()
    link.close()
    with pytest.raises(ValueError, match="the link is closed"):
        last.newest(timeout=LIMIT_S)


def test_a_server_with_a_limit_serves():
    with gdr.ObjectServer(limit=10**9) as server:
        server.object("w", 8).publish_from(bytes(range(8)))
        with gdr.Link(server.address) as link:
            assert link.open("w").get(timeout=LIMIT_S)[1] == bytes(range(8))


def test_arguments_that_are_wrong_are_named(server, link):
    for name in ["no.such.host.invalid", "localhost:port", "x" * 300]:
        with pytest.raises(ValueError, match="is not an address, and no host has this name"):
            gdr.ObjectServer(name)
    with gdr.ObjectServer("localhost:0") as local:
        gdr.Link(local.address.replace("127.0.0.1", "localhost")).close()
    with pytest.raises(TypeError, match="a float is not a key"):
        gdr.Link(server.address, key=1.5)
    for limit, error in [(0, ValueError), (-1, OverflowError), (1.5, TypeError)]:
        with pytest.raises(error):
            gdr.ObjectServer(limit=limit)
    for arguments, text in [
        ({"mode": "newest"}, '"newest" is not a mode'),
        ({"mode": "ring:1"}, "2 to 4096 slots"),
        ({"when_full": "block"}, "when-full applies only to rings"),
        ({"access": "write"}, "read or read-write"),
        ({"checksum": "md5"}, "none or sum64"),
    ]:
        with pytest.raises(ValueError, match=text):
            server.object("name", 8, **arguments)
    with pytest.raises(ValueError, match="is not a valid object name"):
        server.object("a name", 8)
    with pytest.raises(TypeError, match="nbytes"):
        server.object("name")
    with pytest.raises(TypeError, match="nbytes"):
        server.object("name", 8, like=bytes(8))
    server.object("name", 8)
    remote = link.open("name", timeout=LIMIT_S)
    with pytest.raises(TypeError, match="read-only"):
        remote.get_into(bytes(8), timeout=LIMIT_S)
    read_only = CudaArray(gdr.DeviceMemory(8), (8,), "|u1", read_only=True)
    with pytest.raises(TypeError, match="read-only"):
        remote.get_into(read_only, timeout=LIMIT_S)
    with pytest.raises(TypeError, match="a list is not"):
        remote.get_into([0] * 8, timeout=LIMIT_S)
    with pytest.raises(ValueError, match="not a time"):
        remote.wait_newer(timeout=-1)
    with pytest.raises(ValueError, match="0 is not an epoch"):
        remote.wait_newer(0)


def test_only_peers_with_the_key_are_accepted(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    with gdr.ObjectServer(key=KEY) as server:
        server.object("name", 8)
        with gdr.Link(server.address, key=path, timeout=LIMIT_S) as link:
            assert [info["name"] for info in link.list(timeout=LIMIT_S)] == ["name"]
        for key in [bytes(32), None]:
            with pytest.raises(gdr.Error, match="key"):
                gdr.Link(server.address, key=key, timeout=LIMIT_S)


def test_a_wait_lets_other_threads_publish(server, link):
    scalar = server.object("scalar", 8)
    remote = link.open("scalar", timeout=LIMIT_S)
    thread = threading.Thread(target=scalar.publish_from, args=(bytes(8),))
    thread.start()
    # Would raise NothingNewer if it kept the interpreter's lock.
    assert remote.wait_newer(timeout=LIMIT_S) == 1
    thread.join(LIMIT_S)
    # The same from a thread that is not the main one, which waits for no signals.
    epochs = []
    waiting = threading.Thread(
        target=lambda: epochs.append(remote.wait_newer(1, timeout=LIMIT_S))
    )
    waiting.start()
    scalar.publish_from(bytes(8))
    waiting.join(LIMIT_S)
    assert epochs == [2]


OWNER = """
import gdr
server = gdr.ObjectServer()
object = server.object("frame", 1 << 20)
object.publish_from(bytes(1 << 20))
print(server.address, flush=True)
input()
"""

READER = f"""
import sys, gdr
link = gdr.Link(sys.argv[1])
remote = link.open("frame")
print("ready", flush=True)
input()
try:
    print("calling", flush=True)
    if sys.argv[2] == "wait":
        remote.wait_newer(1, timeout={HOURS})
    else:
        while True:
            remote.get_into(bytearray(1 << 20), timeout={HOURS})
except KeyboardInterrupt:
    print("interrupted", flush=True)
input()
print(remote.get(timeout={LIMIT_S})[0], flush=True)
"""


class Program:
    """A Python program whose lines of output are read one by one."""

    def __init__(self, text, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-c", text, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Ends a read that would wait for ever.
        self.limit = threading.Timer(LIMIT_S, self.process.kill)
        self.limit.start()

    def line(self):
        return self.process.stdout.readline().strip()

    def go_on(self):
        print(file=self.process.stdin, flush=True)

    def stop(self):
        """Returns once all of its threads have stopped: until then, one can still answer."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.limit.cancel()
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("what", ["wait", "get"])
def test_ctrl_c_ends_a_call_and_the_link_goes_on(what):
    with Program(OWNER) as owner:
        with Program(READER, owner.line(), what) as reader:
            assert reader.line() == "ready"
            if what == "get":
                # Its next transfer does not end.
                owner.stop()
            reader.go_on()
            assert reader.line() == "calling"
            reader.process.send_signal(signal.SIGINT)
            # Hours before the call's deadline.
            assert reader.line() == "interrupted"
            owner.process.send_signal(signal.SIGCONT)
            reader.go_on()
            assert reader.line() == "1"


def test_a_get_of_an_owner_that_is_stopped_ends_at_its_deadline():
    with Program(OWNER) as owner:
        address = owner.line()
        with gdr.Link(address, timeout=LIMIT_S) as link:
            remote = link.open("frame", timeout=LIMIT_S)
            assert remote.get_into(bytearray(1 << 20), timeout=LIMIT_S) == 1
            owner.stop()
            with pytest.raises(TimeoutError) as stalled:
                remote.get_into(bytearray(1 << 20), timeout=0.5)
            os.kill(owner.process.pid, signal.SIGCONT)
            # It has not answered if the transfer was given up before, and tried again.
            if stalled.type is gdr.Stalled:
                assert stalled.value.name == "frame"
                assert stalled.value.done <= stalled.value.of
            else:
                assert stalled.type is gdr.NoAnswer and stalled.value.owner == address
            assert remote.get_into(bytearray(1 << 20), timeout=LIMIT_S) == 1


def test_the_example_of_the_guide_runs():
    page = Path(__file__).parents[3] / "docs" / "python.md"
    section = page.read_text().split("## Objects\n")[1].split("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), {})
