"""GPUDirect RDMA from Python: GPU memory that the CPU reads and writes in place.

    import gdr, torch

    t = torch.zeros(4, device="cuda")
    with gdr.map(t) as m:
        m.write(b"\\0\\0\\x80\\x3f")   # 1.0, without a CUDA call
        print(m.item())             # 1.0, after one PCIe round trip

An ObjectServer serves named tensors to other processes, which a Link reads, writes and follows by RDMA.
gdr.torch does it with whole models of PyTorch, and is imported by its name only.

map() waits for no stream; Signal tells when a stream has come so far. With GDR_BACKEND=sim in the
environment the GPU is simulated, and never otherwise.
"""

from gdr._command import command_path, doctor, library_path, topology
from gdr._errors import (
    Busy,
    Denied,
    Empty,
    Gone,
    NoAnswer,
    NoSuchObject,
    NothingNewer,
    Stalled,
)
from gdr._gdr import (
    DeviceMemory,
    DeviceSlot,
    Error,
    Extents,
    Gather,
    ObjectServer,
    Link,
    LocalMemory,
    Mapping,
    Object,
    Relay,
    RemoteObject,
    Signal,
    TensorIndex,
    __version__,
    map,
    probe,
)

__all__ = [
    "Busy",
    "Denied",
    "DeviceMemory",
    "DeviceSlot",
    "Empty",
    "Error",
    "Extents",
    "Gather",
    "Gone",
    "ObjectServer",
    "Link",
    "LocalMemory",
    "Mapping",
    "NoAnswer",
    "NoSuchObject",
    "NothingNewer",
    "Object",
    "Relay",
    "RemoteObject",
    "Signal",
    "Stalled",
    "TensorIndex",
    "__version__",
    "command_path",
    "doctor",
    "library_path",
    "map",
    "probe",
    "topology",
]
