"""One rank of allreduces by NCCL, of every size from 8 bytes on. Each result is compared on the GPU.

torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; DEVICE is the GPU of the rank.
The first argument is the largest size in bytes. The second one is `torch` for PyTorch's process group
or `library` for the functions of libnccl.so.2 itself. With a third argument, `allocate`, another thread
allocates and frees memory of the GPU all the time: both calls wait for the whole GPU and hold locks of the
driver, while NCCL's kernels wait for the network. Prints a line of JSON for each size; ends with 1 if any
element was wrong.
"""

import ctypes
import datetime
import json
import os
import statistics
import sys
import threading
import time

import torch
import torch.distributed as distributed

LIMIT = datetime.timedelta(seconds=60)


class ProcessGroup:
    """PyTorch's."""

    def __init__(self, rank, ranks):
        distributed.init_process_group("nccl", timeout=LIMIT)
        self.version = ".".join(map(str, torch.cuda.nccl.version()))

    def all_reduce(self, values):
        distributed.all_reduce(values)

    def close(self):
        distributed.destroy_process_group()


class UniqueId(ctypes.Structure):
    """ncclUniqueId of nccl.h."""

    _fields_ = [("internal", ctypes.c_char * 128)]


class Library:
    """The functions of libnccl.so.2. The ranks meet at PyTorch's store, which uses no NCCL."""

    # ncclFloat32 and ncclSum of nccl.h.
    FLOAT, SUM = 7, 0

    def __init__(self, rank, ranks):
        self.library = ctypes.CDLL("libnccl.so.2")
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        self.version = f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = distributed.TCPStore(address, port, ranks, rank == 0, timeout=LIMIT)
        identifier = UniqueId()
        if rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(identifier))
            self.store.set("identifier", ctypes.string_at(ctypes.byref(identifier), 128))
        ctypes.memmove(ctypes.byref(identifier), self.store.get("identifier"), 128)
        self.communicator = ctypes.c_void_p()
        self.call("ncclCommInitRank", ctypes.byref(self.communicator), ranks, identifier, rank)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        assert result == 0, f"{name} failed: {result}"

    def all_reduce(self, values):
        pointer = ctypes.c_void_p(values.data_ptr())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        count = ctypes.c_size_t(values.numel())
        communicator = self.communicator
        self.call(
            "ncclAllReduce", pointer, pointer, count, self.FLOAT, self.SUM, communicator, stream
        )

    def close(self):
        self.call("ncclCommDestroy", self.communicator)


class Allocations:
    """A thread that allocates and frees memory by the driver's functions until it is stopped."""

    # More than what the driver keeps for small allocations, so that each call maps and unmaps memory.
    BYTES = 8 << 20

    def __init__(self, device):
        self.device = device
        self.number = 0
        self.error = None
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            # ctypes lets other threads of Python run during each call.
            driver = ctypes.CDLL("libcuda.so.1")
            context, device = ctypes.c_void_p(), ctypes.c_int()

            def call(name, *arguments):
                result = getattr(driver, name)(*arguments)
                assert result == 0, f"{name} failed: {result}"

            call("cuDeviceGet", ctypes.byref(device), self.device)
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            call("cuCtxSetCurrent", context)
            while not self.ends.is_set():
                memory = ctypes.c_uint64()
                call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(self.BYTES))
                call("cuMemFree_v2", memory)
                self.number += 1
        except Exception as error:
            self.error = error

    def stop(self):
        self.ends.set()
        self.thread.join(LIMIT.total_seconds())
        assert not self.thread.is_alive(), "an allocation does not end"
        assert self.error is None, self.error


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    most, kind = int(sys.argv[1]), sys.argv[2]
    torch.cuda.set_device(int(os.environ["DEVICE"]))
    communicator = {"torch": ProcessGroup, "library": Library}[kind](rank, ranks)
    allocations = Allocations(int(os.environ["DEVICE"])) if sys.argv[3:] == ["allocate"] else None
    wrong = 0
    size = 8
    while size <= most:
        # Integers that floats hold exactly; they depend on rank, place and size.
        base = (torch.arange(size // 4, device="cuda") * 2654435761 + size) % 4093
        mine = ((base * (rank + 1)) % 8191).float()
        expected = sum((base * (other + 1)) % 8191 for other in range(ranks)).float()
        seconds = []
        bad = 0
        # The first is a warm-up.
        for turn in range(11 if size <= 4 << 20 else 5):
            values = mine.clone()
            torch.cuda.synchronize()
            start = time.perf_counter()
            communicator.all_reduce(values)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
            bad += int((values != expected).sum())
        wrong += bad
        line = {
            "rank": rank,
            "nccl": communicator.version,
            "by": kind,
            "bytes": size,
            "median_us": round(statistics.median(seconds[1:]) * 1e6, 1),
            "min_us": round(min(seconds[1:]) * 1e6, 1),
            "max_us": round(max(seconds[1:]) * 1e6, 1),
            "wrong_elements": bad,
        }
        if allocations is not None:
            line["allocations"] = allocations.number
        print(json.dumps(line), flush=True)
        size *= 2
    if allocations is not None:
        allocations.stop()
    communicator.close()
    return wrong != 0


sys.exit(main())
