"""Objects that hold tensors, without a library for them."""

import gdr
import pytest
from conftest import LIMIT_S


def test_an_index_says_where_each_tensor_is():
    index = gdr.TensorIndex([("b", "F32", []), ("w", "BF16", [2, 3])], {"step": "1"})
    length = len(index.header)
    assert index.tensors == [
        {"name": "b", "dtype": "F32", "shape": [], "offset": length, "nbytes": 4},
        {"name": "w", "dtype": "BF16", "shape": [2, 3], "offset": length + 4, "nbytes": 12},
    ]
    assert (index.nbytes, index.attributes) == (length + 16, {"step": "1"})
    for tensors, words in (
        ([], "no tensors"),
        ([("a", "F32", [1]), ("a", "I8", [1])], "two tensors"),
        ([("a", "float32", [1])], "not a safetensors element type"),
        ([("a", "F32", [1 << 62])], "too large for the address space"),
    ):
        with pytest.raises(ValueError, match=words):
            gdr.TensorIndex(tensors)


def test_work_of_a_stream_writes_an_epoch_in_place():
    index = gdr.TensorIndex([("w", "U8", [4])])
    with gdr.ObjectServer() as server, gdr.Link(server.address, timeout=LIMIT_S) as link:
        published = server.object("w", index.nbytes, device=0)
        remote = link.open("w", timeout=LIMIT_S)

        def write(slot):
            assert (slot.nbytes, slot.device, slot.address % 256) == (index.nbytes, 0, 0)
            assert slot.__cuda_array_interface__["data"] == (slot.address, False)
            with gdr.map((slot.address, slot.nbytes)) as mapping:
                mapping.write(index.header + b"\1\2\3\4")

        def fail(slot):
            raise KeyError("w")

        with pytest.raises(KeyError):
            published.write_on(fail)
        assert published.newest is None
        first = published.write_on(write)
        assert remote.wait_newer(timeout=LIMIT_S) == first == 1
        assert remote.tensors(timeout=LIMIT_S).tensors == index.tensors
        assert remote.get(timeout=LIMIT_S) == (1, index.header + b"\1\2\3\4")
        tensors = [(gdr.DeviceMemory(size), to) for size, to in ((3, 5), (2, 0))]
        for byte, (memory, _) in enumerate(tensors, 1):
            with gdr.map(memory) as mapping:
                mapping.write(bytes([byte]) * memory.nbytes)
        gather = gdr.Gather(tensors)
        assert gather.end == 8
        assert published.write_on(lambda slot: None, gather=gather) == 2
        assert remote.wait_newer(1, timeout=LIMIT_S) == 2
        content = remote.get(timeout=LIMIT_S)[1]
        assert content[:2] == b"\2\2" and content[5:8] == b"\1\1\1"
        with pytest.raises(gdr.Error, match="overlap"):
            gdr.Gather([(tensors[0][0], 0), (tensors[1][0], 2)])
        with pytest.raises(ValueError, match="no tensors"):
            gdr.Gather([])
        host = server.object("h", 8)
        with pytest.raises(ValueError, match="host memory"):
            host.write_on(write)
        host.publish_from(bytes(8))
        with pytest.raises(ValueError, match="h does not contain tensors"):
            link.open("h", timeout=LIMIT_S).tensors(timeout=LIMIT_S)
