"""Four GPUs, a process on each: NCCL's collectives, objects read by several at once, weights by parts.

The first argument says what: `collectives LARGEST`, `objects` or `weights`. torchrun sets RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT; DEVICE is the GPU of the rank. Everything that arrives is compared on
the GPU. Rank 0 prints a line of JSON for each measurement; a rank ends with 1 if anything was wrong.
"""

import contextlib
import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as distributed

LIMIT = 60
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["DEVICE"]))


def say(**fields):
    if RANK == 0:
        print(json.dumps(fields), flush=True)


def store():
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return distributed.TCPStore(
        address, port, RANKS, RANK == 0, timeout=datetime.timedelta(seconds=LIMIT)
    )


def values(rank, count, seed):
    """Integers that bytes and floats hold exactly; they depend on rank, place and seed."""
    return ((torch.arange(count, device=DEVICE) * 31 + rank * 7 + seed) % 61).float()


def all_reduce(count, seed):
    mine, expected = values(RANK, count, seed), sum(values(r, count, seed) for r in range(RANKS))
    return mine, lambda: distributed.all_reduce(mine), mine, expected


def broadcast(count, seed):
    mine, root = values(RANK, count, seed), seed % RANKS
    return mine, lambda: distributed.broadcast(mine, root), mine, values(root, count, seed)


def all_gather(count, seed):
    mine, out = values(RANK, count, seed), torch.empty(RANKS * count, device=DEVICE)
    expected = torch.cat([values(r, count, seed) for r in range(RANKS)])
    return mine, lambda: distributed.all_gather_into_tensor(out, mine), out, expected


def reduce_scatter(count, seed):
    mine, out = values(RANK, RANKS * count, seed), torch.empty(count, device=DEVICE)
    total = sum(values(r, RANKS * count, seed) for r in range(RANKS))
    expected = total[RANK * count : (RANK + 1) * count]
    return mine, lambda: distributed.reduce_scatter_tensor(out, mine), out, expected


def all_to_all(count, seed):
    mine, out = values(RANK, RANKS * count, seed), torch.empty(RANKS * count, device=DEVICE)
    parts = [values(r, RANKS * count, seed)[RANK * count : (RANK + 1) * count] for r in range(RANKS)]
    return mine, lambda: distributed.all_to_all_single(out, mine), out, torch.cat(parts)


def around(count, seed):
    """Sends to the next rank, and receives of the one before."""
    mine, out = values(RANK, count, seed), torch.empty(count, device=DEVICE)
    before, behind = (RANK - 1) % RANKS, (RANK + 1) % RANKS

    def run():
        operations = [
            distributed.P2POp(distributed.isend, mine, behind),
            distributed.P2POp(distributed.irecv, out, before),
        ]
        for work in distributed.batch_isend_irecv(operations):
            work.wait()

    return mine, run, out, values(before, count, seed)


def collectives(largest):
    distributed.init_process_group("nccl", timeout=datetime.timedelta(seconds=LIMIT))
    wrong, size = 0, 8
    while size <= largest:
        for collective in (all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, around):
            # The buffer of all ranks has this size, as nccl-tests counts it.
            whole = collective in (all_reduce, broadcast, around)
            count = max(size // 4 // (1 if whole else RANKS), 1)
            taken, bad = [], 0
            # The first is a warm-up.
            for turn in range(8 if size <= 4 << 20 else 4):
                _, run, out, expected = collective(count, turn + size)
                torch.cuda.synchronize()
                start = time.perf_counter()
                run()
                torch.cuda.synchronize()
                taken.append(time.perf_counter() - start)
                bad += int((out != expected).sum())
            wrong += bad
            median = round(statistics.median(taken[1:]) * 1e6, 1)
            say(what=collective.__name__, bytes=size, median_us=median, wrong=bad)
        size *= 2
    distributed.destroy_process_group()
    return wrong != 0


def objects():
    import gdr

    sizes = [8, 1 << 20, 256 << 20]
    meet, epochs, wrong = store(), 10, 0

    def barrier(name):
        meet.set(f"{name}.{RANK}", "1")
        meet.wait([f"{name}.{rank}" for rank in range(RANKS)])

    stream = torch.cuda.current_stream()
    with gdr.ObjectServer("127.0.0.1:0") as server:
        sources = [torch.zeros(size // 8, dtype=torch.int64, device=DEVICE) for size in sizes]
        published = [server.object(f"o{it.nbytes}", like=it, checksum="none") for it in sources]
        meet.set(f"server.{RANK}", server.address)
        barrier("servers")
        links = {
            rank: gdr.Link(meet.get(f"server.{rank}").decode(), timeout=LIMIT)
            for rank in range(RANKS)
            if rank != RANK
        }
        for who in ("three of one", "four of each other"):
            owners = [0] if who == "three of one" else range(RANKS)
            for size, source, target in zip(sizes, sources, published, strict=True):
                reads = {
                    rank: (
                        links[rank].open(f"o{size}", timeout=LIMIT),
                        torch.zeros(size // 8, dtype=torch.int64, device=DEVICE),
                    )
                    for rank in owners
                    if rank != RANK
                }
                taken = []
                with contextlib.ExitStack() as open_memory:
                    memories = {
                        rank: open_memory.enter_context(links[rank].memory(out))
                        for rank, (_, out) in reads.items()
                    }
                    for turn in range(epochs):
                        epoch = turn + 1 + (epochs if who == "four of each other" else 0)
                        if RANK in owners:
                            first = epoch + RANK
                            torch.arange(first, first + source.numel(), out=source)
                            # Ranks that own in the second turn only are that much behind.
                            number = target.publish_from(source, stream)
                            meet.set(f"{who}.{size}.{turn}.{RANK}.epoch", str(number))
                        for rank, (remote, _) in reads.items():
                            number = int(meet.get(f"{who}.{size}.{turn}.{rank}.epoch"))
                            remote.wait_newer(number - 1, timeout=LIMIT)
                        barrier(f"{who}.{size}.{turn}")
                        start = time.perf_counter()
                        for rank, (remote, _) in reads.items():
                            remote.get_into(memories[rank], timeout=LIMIT)
                        taken.append(time.perf_counter() - start)
                        for rank, (_, out) in reads.items():
                            first = epoch + rank
                            expected = torch.arange(first, first + out.numel(), device=DEVICE)
                            wrong += not torch.equal(out, expected)
                        barrier(f"{who}.{size}.{turn}.read")
                if RANK == 1:
                    us = round(statistics.median(taken) * 1e6 / len(reads), 1)
                    line = {"what": f"objects, {who}", "bytes": size, "gets": epochs * len(reads)}
                    print(json.dumps(line | {"us_of_a_get": us, "wrong": wrong}), flush=True)
        barrier("end")
        for link in links.values():
            link.close()
    return wrong != 0


def weights():
    """Ranks 0 and 1 own the halves of the rows, the others read all of them."""
    import gdr.torch

    meet, rows, columns, steps = store(), 4096, 4096, 20
    names = [f"layers.{layer}.weight" for layer in range(8)]
    owners = (0, 1)

    def barrier(name):
        meet.set(f"{name}.{RANK}", "1")
        meet.wait([f"{name}.{rank}" for rank in range(RANKS)])

    if RANK in owners:
        half = rows // 2
        state = {it: torch.zeros(half, columns, dtype=torch.bfloat16, device=DEVICE) for it in names}
        parts = {it: ((rows, columns), (RANK * half, 0)) for it in names}
        with gdr.torch.publish(state, "model", parts=parts) as publisher:
            meet.set(f"source.{RANK}", publisher.source)
            for step in range(1, steps + 1):
                for tensor in state.values():
                    tensor.fill_(step + 32 * RANK)
                publisher.push(step)
                torch.cuda.synchronize()
                barrier(f"pushed.{step}")
                barrier(f"pulled.{step}")
        return 0
    state = {it: torch.zeros(rows, columns, dtype=torch.bfloat16, device=DEVICE) for it in names}
    sources = [meet.get(f"source.{rank}").decode() for rank in owners]
    taken, wrong, reader = [], 0, None
    for step in range(1, steps + 1):
        barrier(f"pushed.{step}")
        reader = reader or gdr.torch.Reader(sources, state, timeout=LIMIT)
        start = time.perf_counter()
        pulled = reader.pull(timeout=LIMIT)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
        wrong += pulled != step
        for tensor in state.values():
            first, second = tensor[: rows // 2], tensor[rows // 2 :]
            wrong += not bool((first == step).all() and (second == step + 32).all())
        barrier(f"pulled.{step}")
    reader.close()
    nbytes = sum(tensor.nbytes for tensor in state.values())
    median = round(statistics.median(taken[1:]) * 1e3, 2)
    print(json.dumps({"what": "weights", "rank": RANK, "bytes": nbytes, "median_ms": median, "wrong": wrong}), flush=True)
    return wrong != 0


def main():
    torch.cuda.set_device(DEVICE)
    match sys.argv[1:]:
        case ["collectives", largest]:
            return collectives(int(largest))
        case ["objects"]:
            return objects()
        case ["weights"]:
            return weights()
    return __doc__


sys.exit(main())
