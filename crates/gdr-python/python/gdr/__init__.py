"""GPUDirect RDMA from Python: GPU memory that the CPU reads and writes in place.

    import gdr, torch

    t = torch.zeros(4, device="cuda")
    with gdr.map(t) as m:
        m.write(b"\\0\\0\\x80\\x3f")   # 1.0, without a CUDA call
        print(m.item())             # 1.0, after one PCIe round trip

An ObjectServer serves named tensors to other processes, which a Link reads, writes and follows by RDMA.
gdr.torch does this for whole PyTorch models; it must be imported explicitly.

map() does not wait for streams; a Signal shows how far a stream has come. The GPU is simulated if
GDR_BACKEND=sim is set in the environment, and never otherwise.
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
