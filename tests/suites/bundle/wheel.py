"""The Python package beside PyTorch on a GPU: that it is right, and how long it takes.

Prints a table of times at the end. Any wrong result is an exception; a time above its claim is marked
in the table and is none.
"""

import ctypes
import os
import statistics
import threading
import time

import gdr
import torch

# A kernel that ends some time after its start, and says so in host memory right before.
KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 word, .param .u32 value, .param .u64 cycles)
{
    .reg .u64 %rd<6>;
    .reg .u32 %r<2>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [word];
    ld.param.u32 %r1, [value];
    ld.param.u64 %rd2, [cycles];
    mov.u64 %rd3, %clock64;
again:
    mov.u64 %rd4, %clock64;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, %rd2;
    @%p1 bra again;
    st.volatile.global.u32 [%rd1], %r1;
    membar.sys;
    ret;
}
\0"""


class Spin:
    """Launches of the kernel, and the word that it writes."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), KERNEL)
        self.call("cuModuleGetFunction", ctypes.byref(self.function), module, b"spin")
        self.memory = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self.word = ctypes.c_uint32.from_address(self.memory.data_ptr())

    def call(self, name, *arguments):
        result = getattr(self.driver, name)(*arguments)
        assert result == 0, f"{name} failed: {result}"

    def launch(self, stream, value, cycles):
        word, number, time_ = (
            ctypes.c_uint64(self.memory.data_ptr()),
            ctypes.c_uint32(value),
            ctypes.c_uint64(cycles),
        )
        parameters = (ctypes.c_void_p * 3)(*map(ctypes.addressof, (word, number, time_)))
        handle = ctypes.c_void_p(stream.cuda_stream)
        self.call("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, handle, parameters, None)


def times(call, count):
    """Microseconds of each call."""
    taken = []
    for _ in range(count):
        start = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - start) / 1000)
    return taken


# Names, sorted times in microseconds, and the most that is claimed for the median.
ROWS = []


def line(name, taken, claim=None):
    taken = sorted(taken)
    ROWS.append((name, taken, claim))
    return statistics.median(taken)


def table():
    print(f"{'us':<50} {'median':>8} {'1%':>8} {'99%':>8} {'count':>6}  claim")
    for name, taken, claim in ROWS:
        median, last = statistics.median(taken), len(taken) - 1
        low, high = taken[int(0.01 * last)], taken[int(0.99 * last)]
        held = "" if claim is None else f"  <= {claim:.2f} {'yes' if median <= claim else 'NO'}"
        print(f"{name:<50} {median:8.2f} {low:8.2f} {high:8.2f} {len(taken):6}{held}")


def values():
    """Elements of every type, and writes that kernels see."""
    for dtype in [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    ]:  # fmt: skip
        tensor = (torch.arange(100, device="cuda") - 50).to(dtype)
        torch.cuda.synchronize()
        with gdr.map(tensor) as mapping:
            for index in [0, 1, 49, 50, 99]:
                assert mapping.item(index) == tensor[index].item(), (dtype, index)
    parameter = torch.nn.Parameter(torch.ones(3, device="cuda"))
    torch.cuda.synchronize()
    assert gdr.map(parameter).item(2) == 1.0
    size = (32 << 20) + 12
    host = torch.randint(0, 256, (size,), dtype=torch.uint8)
    tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with gdr.map(tensor) as mapping:
        mapping.write(host)
        assert torch.equal(tensor.cpu(), host)
        back = torch.empty_like(host)
        mapping.read(back)
        assert torch.equal(back, host)
    print(f"values: right, by {mapping.backend}")


def items():
    """item() beside PyTorch's, with the GPU idle and busy."""
    tensor = torch.full((1024,), 3.0, device="cuda")
    torch.cuda.synchronize()
    mapping = gdr.map(tensor)
    mapping.item(), tensor[0].item()
    scalar = torch.full((), 3.0, device="cuda")
    torch.cuda.synchronize()
    mapped = gdr.map(scalar)
    ours = line("gdr.map(t).item(), GPU idle", times(mapped.item, 20_000), 1.5)
    theirs = line("t.item(), GPU idle", times(scalar.item, 5_000))
    print(f"t.item() / gdr.map(t).item(): {theirs / ours:.1f}")
    line("gdr.map(t).read() of 64 bytes", times(lambda: mapping.read(nbytes=64), 5_000))
    line("gdr.map(t).write() of 64 bytes", times(lambda: mapping.write(bytes(64)), 20_000))
    line("gdr.map(t) and close()", times(lambda: gdr.map(tensor).close(), 500))

    counter = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    mapped, rounds, spin, graph = gdr.map(counter), 20_000, Spin(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1_000):
            counter.add_(1)
    # All kernels are queued behind one of 20 ms, so that they run one after another while they are
    # watched.
    spin.launch(torch.cuda.current_stream(), 1, 40_000_000)
    for _ in range(rounds // 1_000):
        graph.replay()
    seen, taken = [0], []
    while seen[-1] < rounds:
        start = time.perf_counter_ns()
        value = mapped.item()
        end = time.perf_counter_ns()
        assert value >= seen[-1], "a value went back"
        # From the first kernel to the last one.
        if 0 < value < rounds:
            taken.append((end - start) / 1000)
        if value != seen[-1]:
            seen.append(value)
        assert len(taken) < 10_000_000, "the kernels do not end"
    assert len(taken) >= 1_000, f"{len(taken)} reads beside running kernels: too few"
    line("gdr.map(t).item(), beside running kernels", taken, 1.5)
    print(f"beside running kernels: {len(seen)} values of {rounds + 1} seen, in order")


def copies():
    """Long copies from the GPU into ordinary memory, beside PyTorch's."""
    tensor = torch.randint(0, 256, (64 << 20,), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    mapping = gdr.map(tensor)
    for size, count in [(4 << 10, 2000), (64 << 10, 1000), (1 << 20, 300), (64 << 20, 10)]:
        part, out = tensor[:size], torch.empty(size, dtype=torch.uint8)
        calls = {
            "t.cpu()": part.cpu,
            "out.copy_(t)": lambda part=part, out=out: out.copy_(part),
            "gdr.map(t).read(out)": lambda out=out: mapping.read(out),
        }
        taken = {name: [] for name in calls}
        # In turns, so that what disturbs the machine disturbs each of them.
        for _ in range(10):
            for name, call in calls.items():
                taken[name] += times(call, count // 10 + 1)[1:]
        for name in calls:
            line(f"{name} of {size >> 10} KiB", taken[name])
        assert torch.equal(out, part.cpu())


def launches():
    """Launches of one thread, while another reads and maps."""
    tensor, other = torch.zeros(64, device="cuda"), torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    mapping, spin = gdr.map(other), Spin()
    stop = threading.Event()

    def calls(call):
        while not stop.is_set():
            call()

    def measure(name, call, claim=None):
        stop.clear()
        thread = threading.Thread(target=calls, args=(call,))
        thread.start()
        taken = []
        for _ in range(20):
            taken += times(lambda: tensor.add_(1), 200)
            torch.cuda.synchronize()
        stop.set()
        thread.join(60)
        return line(name, taken, claim)

    # The same contention for the interpreter, and nothing of this package: the measure of the others.
    alone = measure("launch, other thread computes", lambda: sum(range(20)))
    claim = 1.1 * alone
    measure("launch, other thread calls item()", mapping.item, claim)
    measure("launch, other thread maps and closes", lambda: gdr.map(other).close())
    # Without the interpreter: a long copy runs beside the launches.
    size = other.numel() * other.element_size()
    out = bytearray(size)
    measure("launch, other thread reads 4 MiB", lambda: mapping.read(out), claim)
    del spin


def signals():
    """From the end of a kernel to Python, and in a graph."""
    spin, stream, signal = Spin(), torch.cuda.Stream(), gdr.Signal()
    event = torch.cuda.Event()

    def after_kernel(prepare, wait, number):
        spin.launch(stream, number, 60_000)
        prepare()
        word = spin.word
        while word.value != number:
            pass
        start = time.perf_counter_ns()
        wait()
        return (time.perf_counter_ns() - start) / 1000

    def measure(name, prepare, wait, first, claim=None):
        taken = [after_kernel(prepare, wait, first + number) for number in range(2_000)]
        return line(name, taken[100:], claim)

    measure(
        "from a kernel's end to Signal.wait()",
        lambda: signal.record(stream),
        signal.wait,
        1,
        claim=3.0,
    )
    measure(
        "from a kernel's end to Event.synchronize()",
        lambda: event.record(stream),
        event.synchronize,
        100_000,
    )
    measure("from a kernel's end to Stream.synchronize()", int, stream.synchronize, 200_000)

    counter = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    mapped, graph, recorded = gdr.map(counter), torch.cuda.CUDAGraph(), gdr.Signal()
    with torch.cuda.graph(graph):
        counter.add_(1)
        recorded.record(torch.cuda.current_stream(), value=7)
    for number in range(1, 201):
        recorded.value = 0
        graph.replay()
        recorded.wait(7, timeout=30)
        assert mapped.item() == number, (mapped.item(), number)
    print("a signal in a CUDA graph: 200 replays, right")


def objects():
    """A tensor that a stream publishes, and reads into another tensor by RDMA."""
    limit = 60
    with gdr.ObjectServer() as server, gdr.Link(server.address, timeout=limit) as link:
        for size, count in [(8, 500), (1 << 20, 200), (64 << 20, 30)]:
            name = {8: "8 B", 1 << 20: "1 MiB", 64 << 20: "64 MiB"}[size]
            source = torch.zeros(size // 8, dtype=torch.int64, device="cuda")
            out = torch.zeros_like(source)
            stream = torch.cuda.Stream()
            torch.cuda.synchronize()
            published = server.object(f"o{size}", like=source, checksum="none")
            remote = link.open(f"o{size}", timeout=limit)
            assert remote.info["location"]["place"] == "gpu"
            path = remote.info["path"]
            calls, gets, arrivals, seen = [], [], [], None
            with link.memory(out) as memory:
                for number in range(1, count + 1):
                    with torch.cuda.stream(stream):
                        source.fill_(number)
                    start = time.perf_counter_ns()
                    epoch = published.publish_from(source, stream)
                    queued = time.perf_counter_ns()
                    assert remote.wait_newer(seen, timeout=limit) == epoch
                    woken = time.perf_counter_ns()
                    assert remote.get_into(memory, timeout=limit) == epoch
                    end = time.perf_counter_ns()
                    assert bool((out == number).all()), number
                    calls.append((queued - start) / 1000)
                    arrivals.append((woken - start) / 1000)
                    gets.append((end - woken) / 1000)
                    seen = epoch
            line(f"object of {name}: publish_from(), queued", calls)
            line(f"object of {name}: to the end of wait_newer()", arrivals)
            line(f"object of {name}: get_into() a tensor", gets)
            # Many steps are queued and none waits; the last one is published.
            for number in range(200):
                with torch.cuda.stream(stream):
                    source.fill_(number)
                last = published.publish_from(source, stream)
            while seen != last:
                seen = remote.wait_newer(seen, timeout=limit)
            assert remote.get_into(out, timeout=limit) == last
            assert bool((out == 199).all())
            # From the GPU to the CPU's memory.
            host = torch.zeros(size // 8, dtype=torch.int64)
            assert remote.get_into(host, timeout=limit) == last
            assert bool((host == 199).all())
            published.close()
        print(f"objects: right, by {path['provider']}, {path['method']} ({path['why']})")


def main():
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "the default allocator")
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, {settings}")
    tensor = torch.zeros(1 << 20, device="cuda")
    report = gdr.probe(tensor)
    assert not report["simulated"]
    if "expandable_segments:True" in settings:
        assert report["allocator"] == "cuMemCreate", report
    print(f"probe: {report['allocator']}, CPU by {report['cpu']['backend']}")
    for route in report["cpu"]["routes"]:
        print(f"  {route['route']}: {route['method'] or route['rejected'][0]}")
    values()
    items()
    copies()
    launches()
    signals()
    objects()
    table()


main()
