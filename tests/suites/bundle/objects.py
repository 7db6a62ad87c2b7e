"""Objects in memory of one GPU, read into memory of another one by another process.

Started without arguments it owns the objects, on GPU 0, and starts the reader; the reader, on GPU 1, is
the same program with the owner's address. Every get is compared on the reader's GPU.
"""

import statistics
import subprocess
import sys
import time

import gdr
import torch

LIMIT = 60
SIZES = [8, 4 << 10, 1 << 20, 64 << 20, 1 << 30]
EPOCHS = 30


def own():
    torch.cuda.set_device(0)
    stream = torch.cuda.current_stream()
    with gdr.ObjectServer("127.0.0.1:0") as server:
        sources = [torch.zeros(size // 8, dtype=torch.int64, device="cuda") for size in SIZES]
        objects = [
            server.object(f"o{source.nbytes}", like=source, checksum="none") for source in sources
        ]
        with subprocess.Popen([sys.executable, __file__, server.address]) as reader:
            try:
                # The reader takes whichever epoch is the newest, and the last one in the end.
                for published, source in zip(objects, sources, strict=True):
                    for number in range(1, EPOCHS + 1):
                        torch.arange(number, number + source.numel(), out=source)
                        assert published.publish_from(source, stream) == number
                return reader.wait(3 * LIMIT)
            finally:
                reader.kill()


def driver_copies(out):
    """The median time that the driver takes for the same bytes."""
    source = torch.zeros_like(out, device="cuda:0")
    taken = []
    for _ in range(EPOCHS):
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        start = time.perf_counter()
        out.copy_(source)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def read(address):
    torch.cuda.set_device(1)
    with gdr.Link(address, timeout=LIMIT) as link:
        for size in SIZES:
            remote = link.open(f"o{size}", timeout=LIMIT)
            location, path = remote.info["location"], remote.info["path"]
            assert location["place"] == "gpu" and not location["simulated"], location
            out = torch.zeros(size // 8, dtype=torch.int64, device="cuda")
            torch.cuda.synchronize()
            taken, seen, epochs = [], None, set()
            with link.memory(out) as memory:
                while seen != EPOCHS or len(taken) < EPOCHS:
                    if seen != EPOCHS:
                        remote.wait_newer(seen, timeout=LIMIT)
                    start = time.perf_counter()
                    seen = remote.get_into(memory, timeout=LIMIT)
                    taken.append(time.perf_counter() - start)
                    epochs.add(seen)
                    expected = torch.arange(seen, seen + out.numel(), device="cuda")
                    assert torch.equal(out, expected), (size, seen)
            median = statistics.median(taken)
            copied = driver_copies(out)
            print(
                f"{size} bytes from {location} into GPU {out.device.index}: {len(taken)} gets of "
                f"{len(epochs)} epochs, all right, median {median * 1e6:.1f} us, "
                f"{size / median / 1e9:.2f} GB/s, the driver's copy {copied * 1e6:.1f} us, {path}",
                flush=True,
            )
    return 0


sys.exit(own() if len(sys.argv) == 1 else read(sys.argv[1]))
