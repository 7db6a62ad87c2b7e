"""gdr.map: GPU memory that the CPU reads and writes."""

import ctypes
import gc
import os
import struct
import threading
import weakref

import gdr
import pytest
from conftest import CPU, CUDA_MANAGED, LIMIT_S, CudaArray, DlpackArray


@pytest.mark.parametrize("kind", ["plain", "pool", "vmm", "vmm-posix-fd"])
def test_memory_of_every_kind_has_what_was_written(kind):
    memory = gdr.DeviceMemory(100_000, kind=kind)
    contents = os.urandom(100_000)
    with gdr.map(memory) as mapping:
        mapping.write(contents)
        assert mapping.read() == contents
        assert mapping.read(offset=99, nbytes=7) == contents[99:106]
        out = bytearray(5000)
        assert mapping.read(out, offset=1000) is out
        assert out == contents[1000:6000]
        assert (mapping.nbytes, mapping.device, mapping.backend) == (100_000, 0, "sim")
    # Another mapping has it, too: it was written to the memory.
    with gdr.map((memory.address, memory.nbytes)) as again:
        assert again.read() == contents


def test_long_reads_have_every_byte_of_every_part():
    size = (9 << 20) + 13
    contents = os.urandom(size)
    with gdr.map(gdr.DeviceMemory(size)) as mapping:
        mapping.write(contents)
        assert mapping.read() == contents
        assert mapping.read(offset=4097) == contents[4097:]


VALUES = [
    ("<i1", 0, 8, "b", -5),
    ("<i2", 0, 16, "h", -300),
    ("<i4", 0, 32, "i", -70_000),
    ("<i8", 0, 64, "q", -(1 << 62)),
    ("|u1", 1, 8, "B", 250),
    ("<u2", 1, 16, "H", 65_535),
    ("<u4", 1, 32, "I", 4_000_000_000),
    ("<u8", 1, 64, "Q", 2**64 - 1),
    ("<f2", 2, 16, "e", -0.333251953125),
    ("<f2", 2, 16, "e", 5.960464477539063e-08),
    ("<f2", 2, 16, "e", 65504.0),
    ("<f2", 2, 16, "e", float("-inf")),
    ("<f4", 2, 32, "f", 1.5),
    ("<f8", 2, 64, "d", 0.1),
    ("|b1", 6, 8, "?", True),
]


@pytest.mark.parametrize(("typestr", "code", "bits", "letter", "value"), VALUES)
def test_item_is_the_element_by_both_interfaces(memory, typestr, code, bits, letter, value):
    arrays = [
        CudaArray(memory, (3, 2), typestr),
        DlpackArray(memory.address, (3, 2), code, bits),
    ]
    for array in arrays:
        with gdr.map(array) as mapping:
            assert mapping.nbytes == 6 * bits // 8
            mapping.write(struct.pack(f"<{letter}", value), offset=5 * bits // 8)
            found = mapping.item(5)
            assert found == value
            assert type(found) is type(value)
            with pytest.raises(IndexError, match="there are 6"):
                mapping.item(6)


def test_item_of_bfloat16_and_of_complex_numbers_is_the_number(memory):
    for code, bits, raw, value in [
        (4, 16, struct.pack("<f", -2.5)[2:], -2.5),
        (5, 64, struct.pack("<ff", 1.5, -2.0), 1.5 - 2j),
        (5, 128, struct.pack("<dd", 0.1, 0.2), 0.1 + 0.2j),
    ]:
        with gdr.map(DlpackArray(memory.address, (1,), code, bits)) as mapping:
            mapping.write(raw)
            assert mapping.item() == value


def test_a_half_that_is_no_number_stays_none(memory):
    with gdr.map(DlpackArray(memory.address, (1,), 2, 16)) as mapping:
        mapping.write(struct.pack("<H", 0x7E00))
        found = mapping.item()
        assert found != found


def test_an_element_without_a_value_in_python_has_bytes_only(memory):
    with gdr.map(CudaArray(memory, (4,), "|V16")) as mapping:
        with pytest.raises(TypeError, match="no value in Python"):
            mapping.item()
        assert len(mapping.read()) == 64


def test_an_array_is_exported_without_waiting_for_a_stream_and_its_offset_counts(memory):
    array = DlpackArray(memory.address, (4,), 1, 8, byte_offset=10)
    with gdr.map(array) as mapping:
        assert mapping.address == memory.address + 10
        assert [mapping.item(index) for index in range(4)] == [10, 11, 12, 13]
    assert array.streams == [-1]


def test_a_tensor_that_requires_a_gradient_is_mapped_by_its_detached_one(memory):
    class Parameter(DlpackArray):
        def detach(self):
            return DlpackArray(memory.address, (2,), 2, 32)

        def __dlpack__(self, stream=None):
            raise BufferError("Can't export tensors that require gradient")

    with gdr.map(Parameter(memory.address, (2,), 2, 32)) as mapping:
        assert mapping.nbytes == 8


def test_arrays_with_gaps_and_without_elements_are_refused(memory):
    for array in [
        CudaArray(memory, (4, 4), "<f4", strides=(32, 4)),
        CudaArray(memory, (4, 4), "<f4", strides=(4, 16)),
        DlpackArray(memory.address, (4, 4), 2, 32, strides=(1, 4)),
    ]:
        with pytest.raises(ValueError, match="not contiguous"):
            gdr.map(array)
    for array in [
        CudaArray(memory, (4, 4), "<f4", strides=(16, 4)),
        # The stride of a single row is never used.
        CudaArray(memory, (1, 4), "<f4", strides=(999, 4)),
        DlpackArray(memory.address, (4, 4), 2, 32, strides=(4, 1)),
    ]:
        gdr.map(array).close()
    with pytest.raises(ValueError, match="no elements"):
        gdr.map(CudaArray(memory, (0, 4), "<f4"))


def test_what_is_not_gpu_memory_is_refused(memory):
    for wrong in [bytearray(4), 17, None, (1, 2, 3), ("a", 4)]:
        with pytest.raises(TypeError):
            gdr.map(wrong)
    with pytest.raises(TypeError, match="the CPU reads it already"):
        gdr.map(DlpackArray(memory.address, (4,), 2, 32, device=CPU))
    with pytest.raises(ValueError, match="managed"):
        gdr.map(DlpackArray(memory.address, (4,), 2, 32, device=CUDA_MANAGED))
    with pytest.raises(ValueError, match="does not know the address"):
        gdr.map((4096, 4096))
    with pytest.raises(ValueError, match="exceed the allocation"):
        gdr.map((memory.address, 1 << 40))


def test_accesses_outside_of_the_mapping_are_refused_and_copy_nothing(memory):
    with gdr.map((memory.address, 100)) as mapping:
        before = mapping.read()
        for offset, data in [(101, b""), (100, b"a"), (0, bytes(101)), (2**63, b"a")]:
            with pytest.raises(ValueError, match="not within the mapping"):
                mapping.write(data, offset=offset)
        with pytest.raises(ValueError, match="not within the mapping"):
            mapping.read(bytearray(101))
        with pytest.raises(ValueError, match="not within the mapping"):
            mapping.read(offset=99, nbytes=2)
        with pytest.raises(OverflowError):
            mapping.read(offset=-1)
        assert mapping.read() == before


def test_host_memory_may_be_a_buffer_or_a_tensor_and_must_fit_its_use(memory):
    with gdr.map(memory) as mapping:
        mapping.write(memoryview(b"abcd"))
        out = bytearray(4)
        address = ctypes.addressof(ctypes.c_char.from_buffer(out))
        mapping.read(DlpackArray(address, (4,), 1, 8, device=CPU))
        assert out == b"abcd"
        with pytest.raises(TypeError, match="read-only"):
            mapping.read(b"1234")
        with pytest.raises(ValueError, match="not contiguous"):
            mapping.write(memoryview(b"abcdef")[::2])
        with pytest.raises(TypeError, match="not host memory"):
            mapping.write(3.0)
        with pytest.raises(TypeError, match="not in host memory"):
            mapping.write(DlpackArray(memory.address, (4,), 1, 8))
        with pytest.raises(TypeError, match="leave nbytes out"):
            mapping.read(out, nbytes=3)


def test_a_read_only_array_is_read_and_not_written(memory):
    with gdr.map(CudaArray(memory, (4,), "|u1", read_only=True)) as mapping:
        assert mapping.item(3) == 3
        with pytest.raises(TypeError, match="read-only"):
            mapping.write(b"a")
        assert mapping.item() == 0


def test_a_mapping_keeps_its_tensor_until_it_is_closed(memory):
    array = CudaArray(memory, (4,), "<f4")
    kept = weakref.ref(array)
    mapping = gdr.map(array)
    del array
    gc.collect()
    assert kept() is not None
    mapping.close()
    mapping.close()
    gc.collect()
    assert kept() is None
    with pytest.raises(ValueError, match="closed"):
        mapping.item()


def test_other_threads_run_while_a_long_copy_does():
    size = 64 << 20
    mapping = gdr.map(gdr.DeviceMemory(size))
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        out = bytearray(size)
        while counted[0] == 0:
            mapping.read(out)
        before = counted[0]
        mapping.read(out)
        mapping.write(out)
    finally:
        stop.set()
        thread.join(LIMIT_S)
    assert counted[0] > before


def test_a_child_of_a_fork_has_no_mappings_and_may_make_its_own(memory):
    mapping = gdr.map(memory)
    child = os.fork()
    if child == 0:
        try:
            for refused in [mapping.item, mapping.read, lambda: mapping.write(b"a")]:
                try:
                    refused()
                    os._exit(1)
                except gdr.Error as error:
                    if "forked child" not in str(error):
                        os._exit(2)
            with gdr.map(gdr.DeviceMemory(4096)) as own:
                own.write(b"child")
                os._exit(0 if own.read(nbytes=5) == b"child" else 3)
        finally:
            os._exit(4)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert mapping.item(7) == 7
