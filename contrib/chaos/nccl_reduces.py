"""NCCL: two ranks reduce the bytes of a turn, and both compare each byte of the sum.

nccl_reduces.py target PORT
nccl_reduces.py initiator PORT

Both use the first GPU, as hosts of their own. A rank ends with an error when NCCL has one, as PyTorch's watchdog does.
"""

import ctypes
import importlib.util
import os
import sys
import time
from multiprocessing.connection import Listener

from peers import BYTES, connect, pattern, turns, wrong_bytes

# Of nccl.h and of the CUDA runtime.
UINT8, SUM, IN_PROGRESS, NOT_READY, COPY_OF_ANY_KIND = 1, 0, 7, 600, 4
ID_BYTES = 128


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


def library(package, name):
    """A library of a wheel of NVIDIA, or of the system."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations if found else ():
        for path in (f"{folder}/{package}/lib/{name}", f"{folder}/cu13/lib/{name}"):
            if os.path.exists(path):
                return ctypes.CDLL(path)
    return ctypes.CDLL(name)


def cuda_runtime():
    for version in ("13", "12"):
        try:
            return library("cuda_runtime", f"libcudart.so.{version}")
        except OSError:
            pass
    sys.exit("there is no CUDA runtime (libcudart.so)")


CUDA = cuda_runtime()
NCCL = library("nccl", "libnccl.so.2")


def call(library, name, *arguments):
    if (result := getattr(library, name)(*arguments)) != 0:
        sys.exit(f"{name} failed: {result}")


class Rank:
    def __init__(self, rank, identifier):
        self.memory, self.stream, self.communicator = (ctypes.c_void_p() for _ in range(3))
        call(CUDA, "cudaMalloc", ctypes.byref(self.memory), ctypes.c_size_t(BYTES))
        call(CUDA, "cudaStreamCreateWithFlags", ctypes.byref(self.stream), 1)
        call(NCCL, "ncclCommInitRank", ctypes.byref(self.communicator), 2, identifier, rank)

    def copy(self, to, source):
        call(CUDA, "cudaMemcpyAsync", to, source, ctypes.c_size_t(BYTES), COPY_OF_ANY_KIND, self.stream)

    def reduce(self, own):
        """The sum of both ranks' bytes."""
        result = ctypes.create_string_buffer(BYTES)
        self.copy(self.memory, own)
        arguments = self.memory, self.memory, ctypes.c_size_t(BYTES), UINT8, SUM, self.communicator, self.stream
        call(NCCL, "ncclAllReduce", *arguments)
        state = ctypes.c_int()
        while (queued := CUDA.cudaStreamQuery(self.stream)) == NOT_READY:
            call(NCCL, "ncclCommGetAsyncError", self.communicator, ctypes.byref(state))
            if state.value not in (0, IN_PROGRESS):
                print(f"NCCL's error is {state.value}", flush=True)
                os._exit(1)  # The kernel that waits for bytes would hold up an ordinary end.
            time.sleep(0.0005)
        if queued != 0:
            sys.exit(f"cudaStreamQuery failed: {queued}")
        self.copy(result, self.memory)
        call(CUDA, "cudaStreamSynchronize", self.stream)
        return result.raw


def main():
    role, place = sys.argv[1], ("127.0.0.1", int(sys.argv[2]))
    os.environ.update(
        NCCL_HOSTID=role, NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_SOCKET_IFNAME="lo", NCCL_IB_GID_INDEX="0"
    )
    if role == "target":
        identifier = UniqueId()
        call(NCCL, "ncclGetUniqueId", ctypes.byref(identifier))
        with Listener(place) as listener, listener.accept() as peer:
            peer.send_bytes(ctypes.string_at(ctypes.byref(identifier), ID_BYTES))
            rank = Rank(0, identifier)
            while (turn := peer.recv()) is not None:
                peer.send(rank.reduce(bytes(BYTES)) == pattern(turn))
        return
    peer = connect(place)
    rank = Rank(1, UniqueId.from_buffer_copy(peer.recv_bytes()))
    for turn in turns():
        peer.send(turn)
        own = rank.reduce(pattern(turn)) == pattern(turn)
        if not (peer.recv() and own):
            wrong_bytes()
    peer.send(None)


main()
