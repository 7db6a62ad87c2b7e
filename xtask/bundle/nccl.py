"""One rank of allreduces by NCCL, of every size from 8 bytes on. Each result is compared on the GPU.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are those of torchrun; DEVICE is the GPU of the rank.
The argument is the largest size in bytes. Prints a line of JSON for each size; ends with 1 if any
element was wrong.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as distributed

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
most = int(sys.argv[1])
torch.cuda.set_device(int(os.environ["DEVICE"]))
distributed.init_process_group("nccl")

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
        distributed.all_reduce(values)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        bad += int((values != expected).sum())
    wrong += bad
    line = {
        "rank": rank,
        "bytes": size,
        "median_us": round(statistics.median(seconds[1:]) * 1e6, 1),
        "min_us": round(min(seconds[1:]) * 1e6, 1),
        "max_us": round(max(seconds[1:]) * 1e6, 1),
        "wrong_elements": bad,
    }
    print(json.dumps(line), flush=True)
    size *= 2
distributed.destroy_process_group()
sys.exit(wrong != 0)
