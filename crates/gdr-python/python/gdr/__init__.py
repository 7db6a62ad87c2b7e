"""GPUDirect RDMA from Python: GPU memory that the CPU reads and writes in place.

    import gdr, torch

    t = torch.zeros(4, device="cuda")
    with gdr.map(t) as m:
        m.write(b"\\0\\0\\x80\\x3f")   # 1.0, without a CUDA call
        print(m.item())             # 1.0, after one PCIe round trip

map() waits for no stream; Signal tells when a stream has come so far. With GDR_BACKEND=sim in the
environment the GPU is simulated, and never otherwise.
"""

from gdr._command import command_path, doctor, library_path, topology
from gdr._gdr import DeviceMemory, Error, Mapping, Signal, __version__, map, probe

__all__ = [
    "DeviceMemory",
    "Error",
    "Mapping",
    "Signal",
    "__version__",
    "command_path",
    "doctor",
    "library_path",
    "map",
    "probe",
    "topology",
]
