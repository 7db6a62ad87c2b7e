"""Arrays in simulated GPU memory, as libraries for tensors describe them."""

import ctypes
import os

import gdr
import pytest

# Longer than anything that must come takes on a slow machine.
LIMIT_S = 120.0


def pytest_configure() -> None:
    if os.environ.get("GDR_BACKEND") != "sim":
        pytest.exit("these tests run on the simulated GPU: set GDR_BACKEND=sim", returncode=2)


class CudaArray:
    """An array with `__cuda_array_interface__`, as of Numba."""

    def __init__(self, memory, shape, typestr, strides=None, read_only=False):
        self.memory = memory
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
            "data": (memory.address, read_only),
        }


class _Tensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

CPU, CUDA, CUDA_MANAGED = 1, 2, 13


class DlpackArray:
    """An array with `__dlpack__`, as of PyTorch."""

    def __init__(self, address, shape, code, bits, device=CUDA, strides=None, byte_offset=0):
        self.device = device
        self.streams = []
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self.tensor = _Tensor(
            address, device, 0, len(shape), code, bits, 1, self.shape, self.strides, byte_offset
        )

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return _new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)


@pytest.fixture
def memory():
    """64 KiB of GPU memory with known contents."""
    memory = gdr.DeviceMemory(1 << 16)
    with gdr.map(memory) as mapping:
        mapping.write(bytes(range(256)) * 256)
    return memory
