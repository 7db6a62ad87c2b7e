"""Weights of a model in the shape of Qwen3-0.6B, which a trainer publishes and an engine pulls.

Both are processes of their own, on two GPUs where there are two, and on one. Every pull is compared on the
engine's GPU. Prints how long a push holds up its stream beside a bare copy of as many bytes, what a step that
pushes takes, how long a pull takes, and what torch.distributed takes to broadcast the same tensors. Then
the trainer pushes without a pause, and no pull may mix two pushes.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import torch

LIMIT_S = 120
PULLS = 15
SETTLE_S = 10
STORM_S = float(os.environ.get("STORM_S", "10"))


def model(device, value):
    """The tensors of the public configuration, in bf16, all of one value."""
    width, layers, inner, heads, pairs, vocabulary = 1024, 28, 3072, 2048, 1024, 151936
    shapes = {"embed": (vocabulary, width), "norm": (width,)}
    for layer in range(layers):
        shapes |= {
            f"layers.{layer}.{name}": shape
            for name, shape in {
                "q": (heads, width), "k": (pairs, width), "v": (pairs, width), "o": (width, heads),
                "gate": (inner, width), "up": (inner, width), "down": (width, inner),
                "norm1": (width,), "norm2": (width,), "q_norm": (128,), "k_norm": (128,),
            }.items()
        }  # fmt: skip
    return {name: torch.full(shape, value, dtype=torch.bfloat16, device=device) for name, shape in shapes.items()}


def say(**fields):
    print(json.dumps(fields), flush=True)


def median(times):
    return round(statistics.median(times), 3)


def on_stream(work, times=1):
    """Milliseconds of the GPU between two events, for each call."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(times):
        work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / times


def train(device):
    import gdr.torch

    torch.cuda.set_device(device)
    state = model(f"cuda:{device}", 0)
    tensors = list(state.values())
    # bf16 has these numbers exactly.
    numbers = [0]

    def change():
        numbers[0] = numbers[0] % 200 + 1
        torch._foreach_zero_(tensors)
        torch._foreach_add_(tensors, numbers[0])

    with gdr.torch.publish(state, "model") as publisher:
        source = torch.empty(publisher.nbytes, dtype=torch.uint8, device=f"cuda:{device}")
        target = torch.empty_like(source)

        def push():
            publisher.push(numbers[0])

        for _ in range(6):
            push()
        bare, pushes = [], []
        for _ in range(10):
            # The GPU is busy meanwhile, so that the calls of both are queued before they run.
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)
            events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            events[0].record()
            target.copy_(source)
            events[1].record()
            push()
            events[2].record()
            torch.cuda.synchronize()
            bare.append(events[0].elapsed_time(events[1]))
            pushes.append(events[1].elapsed_time(events[2]))
        ratio = round(median(pushes) / median(bare), 3)
        say(what="push", tensors=len(tensors), bytes=publisher.nbytes, copy_ms=median(bare), push_ms=median(pushes), ratio=ratio)
        matrix = torch.randn(8192, 8192, device=f"cuda:{device}", dtype=torch.bfloat16)

        def step():
            product = matrix
            for _ in range(30):
                product = (product @ matrix) * 0.01

        # The GPU's clocks settle some seconds after it became busy. Before that, a pause or a copy between two
        # steps changes how long the next one takes.
        settled = time.monotonic() + SETTLE_S
        while time.monotonic() < settled:
            on_stream(step, 10)
        alone, pushing = [], []
        turns = [(alone, step), (pushing, lambda: (step(), push()))]
        for _ in range(10):
            for times, work in turns:
                times.append(on_stream(work, 10))
            turns.reverse()
        ratio = round(median(pushing) / median(alone), 3)
        say(what="step", without_ms=median(alone), with_push_ms=median(pushing), ratio=ratio)
        del source, target, matrix
        print("SOURCE", publisher.source, flush=True)
        for line in sys.stdin:
            if line.strip() == "push":
                change()
                push()
                torch.cuda.synchronize()
                print("PUSHED", numbers[0], flush=True)
            else:
                until, pushed = time.monotonic() + float(line), 0
                while time.monotonic() < until:
                    change()
                    push()
                    pushed += 1
                    if pushed % 4 == 0:
                        torch.cuda.synchronize()
                print("PUSHED", pushed, flush=True)


def pull(trainer, device, name):
    import gdr.torch

    torch.cuda.set_device(device)
    for line in trainer.stdout:
        if line.startswith("SOURCE"):
            source = line.split()[1]
            break
        print(line, end="", flush=True)
    into = model(f"cuda:{device}", 255)
    tensors = list(into.values())

    def is_whole(step):
        return all(torch.stack([(tensor == step).all() for tensor in tensors]).tolist())

    def ask(line):
        trainer.stdin.write(f"{line}\n")
        trainer.stdin.flush()

    with gdr.torch.Reader(source, into, timeout=LIMIT_S) as reader:
        pulls = []
        for _ in range(PULLS):
            ask("push")
            pushed, step = int(trainer.stdout.readline().split()[1]), None
            until = time.monotonic() + LIMIT_S
            # A push is published a moment after its stream has ended.
            while step != pushed:
                assert time.monotonic() < until, f"push {pushed} is not published, step {step} is"
                start = time.perf_counter()
                step = reader.pull(timeout=LIMIT_S)
                torch.cuda.synchronize()
                taken = (time.perf_counter() - start) * 1e3
                assert step <= pushed and is_whole(step), (step, pushed)
            pulls.append(taken)
        nbytes = sum(tensor.nbytes for tensor in tensors)
        say(what="pull", where=name, ms=median(pulls), least_ms=round(min(pulls), 3), gb_per_s=round(nbytes / median(pulls) / 1e6, 1))
        ask(STORM_S)
        until, taken, torn, steps = time.monotonic() + STORM_S - 1, [], 0, set()
        while time.monotonic() < until:
            start = time.perf_counter()
            step = reader.pull(timeout=LIMIT_S)
            torch.cuda.synchronize()
            taken.append((time.perf_counter() - start) * 1e3)
            steps.add(step)
            torn += not is_whole(step)
        pushed = int(trainer.stdout.readline().split()[1])
        say(what="without a pause", where=name, pulls=len(taken), pushes=pushed, torn=torn, steps=len(steps), pull_ms=median(taken))
        assert not torn


def broadcast(rank, backend, port, devices):
    import torch.distributed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
    device = torch.device("cuda", devices[rank])
    torch.cuda.set_device(device)
    torch.distributed.init_process_group(backend, rank=rank, world_size=2, device_id=device if backend == "nccl" else None)
    tensors = list(model(device if backend == "nccl" else "cpu", rank).values())
    taken = []
    for _ in range(8 if backend == "nccl" else 3):
        torch.distributed.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for work in [torch.distributed.broadcast(tensor, 0, async_op=True) for tensor in tensors]:
            work.wait()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) * 1e3)
    if rank:
        say(what="broadcast", by=backend, ms=median(taken), least_ms=round(min(taken), 3))
    torch.distributed.destroy_process_group()


def start(*words, **pipes):
    return subprocess.Popen([sys.executable, __file__, *words], text=True, **pipes)


def main():
    count = torch.cuda.device_count()
    say(what="machine", gpus=count, gpu=torch.cuda.get_device_name(0), cpus=os.cpu_count(), torch=torch.__version__)
    for name, first, second in (("two GPUs", 0, 1), ("one GPU", 0, 0)):
        if second < count:
            with start("train", str(first), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
                try:
                    pull(trainer, second, name)
                finally:
                    trainer.kill()
    # NCCL refuses two ranks on one GPU.
    for backend, port in (("nccl", "23456"), ("gloo", "23457")):
        devices = "0,1" if count > 1 else "0,0"
        if count > 1 or backend != "nccl":
            ranks = [start("broadcast", str(rank), backend, port, devices) for rank in (0, 1)]
            assert not any([rank.wait(LIMIT_S) for rank in ranks])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["train", device]:
            train(int(device))
        case ["broadcast", rank, backend, port, devices]:
            broadcast(int(rank), backend, port, [int(device) for device in devices.split(",")])
        case _:
            main()
