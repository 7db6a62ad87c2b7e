"""The Python package beside PyTorch on a GPU: that it is right, and how long it takes.

Prints one line for each number. Any wrong result is an exception.
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


def line(name, taken):
    taken = sorted(taken)
    median, late = statistics.median(taken), taken[int(0.99 * (len(taken) - 1))]
    print(f"{name:<58} median {median:8.2f} us   99% {late:8.2f} us", flush=True)
    return median


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
    ours = line("gdr.map(t).item(), GPU idle", times(mapped.item, 20_000))
    theirs = line("t.item(), GPU idle", times(scalar.item, 5_000))
    print(f"t.item() / gdr.map(t).item(): {theirs / ours:.1f}")
    line("gdr.map(t).read() of 64 bytes", times(lambda: mapping.read(nbytes=64), 5_000))
    line("gdr.map(t).write() of 64 bytes", times(lambda: mapping.write(bytes(64)), 20_000))
    line("gdr.map(t) and close()", times(lambda: gdr.map(tensor).close(), 500))

    counter = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    mapped, rounds = gdr.map(counter), 5_000
    for _ in range(rounds):
        counter.add_(1)
    seen, taken = [0], []
    while seen[-1] < rounds:
        start = time.perf_counter_ns()
        seen.append(mapped.item())
        taken.append((time.perf_counter_ns() - start) / 1000)
        assert len(taken) < 10_000_000, "the kernels do not end"
    assert seen == sorted(seen), "a value went back"
    line("gdr.map(t).item(), beside running kernels", taken)
    print(f"beside running kernels: {len(set(seen))} values of {rounds + 1} seen, in order")


def launches():
    """Launches of one thread, while another reads and maps."""
    tensor, other = torch.zeros(64, device="cuda"), torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    mapping, spin = gdr.map(other), Spin()
    stop = threading.Event()

    def calls(call):
        while not stop.is_set():
            call()

    def measure(name, call):
        stop.clear()
        thread = threading.Thread(target=calls, args=(call,))
        thread.start()
        taken = []
        for _ in range(20):
            taken += times(lambda: tensor.add_(1), 200)
            torch.cuda.synchronize()
        stop.set()
        thread.join(60)
        return line(name, taken)

    measure("kernel launch, other thread computes", lambda: sum(range(20)))
    measure("kernel launch, other thread reads by item()", mapping.item)
    measure("kernel launch, other thread maps and closes", lambda: gdr.map(other).close())
    # Without the interpreter: a long copy runs beside the launches.
    size = other.numel() * other.element_size()
    out = bytearray(size)
    measure("kernel launch, other thread reads 4 MiB", lambda: mapping.read(out))
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

    def measure(name, prepare, wait, first):
        taken = [after_kernel(prepare, wait, first + number) for number in range(2_000)]
        return line(name, taken[100:])

    measure(
        "from a kernel's end to Signal.wait()", lambda: signal.record(stream), signal.wait, 1
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
    launches()
    signals()


main()
