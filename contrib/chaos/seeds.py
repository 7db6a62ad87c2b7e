"""Runs a job of two processes under many seeds of one fault, and counts how the runs end.

    python3 seeds.py ucx|mpi|nixl|mooncake|nccl flap|hang|kill [--seeds 0..100] [--jobs 4] [--deadline 30]

A run recovers (it ends well), fails (it ends otherwise), hangs (it does not end before the deadline), has wrong
bytes, or was not struck. Needs gdr, and what the job is of: ucx_perftest; mpirun and mpi_messages in the PATH; the
wheel nixl-cu12; the wheel mooncake-transfer-engine-non-cuda; a GPU, NCCL and the CUDA runtime.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
SETTINGS = {
    "UCX_TLS": "self,rc_v",
    "UCX_NET_DEVICES": "gdr0:1",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "MC_TRANSFER_TIMEOUT": "5",  # Mooncake gives up after 30 s without it.
}
MPI = "mpirun --allow-run-as-root --oversubscribe --mca pml ucx --mca btl ^openib,vader,tcp"


def fault(kind, job, seed):
    """The scenario of a seed, and which of the two ends it strikes."""
    at = 100 + seed * 6 % 600
    if kind == "flap":
        return f"link-down at={at}ms for=300ms", "initiator"
    if kind == "hang":
        return "hang queue=send p=1% max=1", "initiator"
    # NIXL's target is killed by bytes, as it sends nothing by itself.
    return f"kill after={200 + seed * 15 % 1500}K" if job == "nixl" else f"kill at={at}ms", "target"


def free_port():
    """A port below those that the kernel gives to clients, which could connect to themselves there."""
    while True:
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port := random.randrange(10000, 30000)))
                return str(port)
            except OSError:
                pass


def commands(job, ends):
    """The commands of a run: the one that decides how it ended, and a second one before it or none."""
    port = free_port()
    if job == "mpi":
        ranks = [f"-n 1 {' '.join(map(quoted, ends[end]))} mpi_messages" for end in ("initiator", "target")]
        return [["sh", "-c", f"exec {MPI} {' : '.join(ranks)}"]]
    if job == "ucx":
        run = ["ucx_perftest", "-t", "tag_bw", "-s", "65536", "-n", "20000", "-w", "10", "-p", port]
        return [[*ends["initiator"], *run, "127.0.0.1"], [*ends["target"], *run]]
    script = HERE / {"nixl": "nixl_writes.py", "mooncake": "mooncake_reads.py", "nccl": "nccl_reduces.py"}[job]
    return [[*ends[end], sys.executable, "-B", str(script), end, port] for end in ("initiator", "target")]


def end(process):
    """Ends the processes of a group; mpirun ends its ranks itself, which are in groups of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def quoted(word):
    return f"'{word}'"


def run(options, seed):
    """Returns the verdict of a seed, the seconds that it took, and what the run printed."""
    # Each run has an address of its own, so that runs do not share a device.
    nic = ["gdr", "run", "--nic", f"127.0.3.{1 + seed % 250}"]
    scenario, struck_end = fault(options.fault, options.job, seed)
    with tempfile.TemporaryDirectory() as folder:
        log, output = os.path.join(folder, "chaos.log"), os.path.join(folder, "output")
        ends = dict.fromkeys(("initiator", "target"), [*nic, "--"])
        ends[struck_end] = [*nic, "--chaos", scenario, "--seed", str(seed), "--chaos-log", log, "--"]
        begin, processes = time.monotonic(), []
        with open(output, "wb") as out:
            for command in reversed(commands(options.job, ends)):
                if options.job == "ucx" and processes:
                    time.sleep(1)  # ucx_perftest does not try again to connect.
                processes.append(
                    subprocess.Popen(
                        command, stdout=out, stderr=out, start_new_session=True, env={**os.environ, **SETTINGS}
                    )
                )
            try:
                status = processes[-1].wait(options.deadline)
            except subprocess.TimeoutExpired:
                status = None
        took = time.monotonic() - begin
        for process in processes:
            end(process)
        text = pathlib.Path(output).read_text(errors="replace")
        faults = pathlib.Path(log).read_text() if os.path.exists(log) else ""
    if "WRONG BYTES" in text:
        verdict = "wrong bytes"
    elif "rule=" not in faults:
        verdict = "not struck"
    else:
        verdict = {None: "hangs", 0: "recovers"}.get(status, "fails")
    return seed, verdict, took, text + faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("ucx", "mpi", "nixl", "mooncake", "nccl"))
    parser.add_argument("fault", choices=("flap", "hang", "kill"))
    parser.add_argument("--seeds", default="0..100", help="from the first one up to the last, which is left out")
    parser.add_argument("--jobs", type=int, default=4, help="runs at once")
    parser.add_argument("--deadline", type=float, default=30, help="in seconds")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for what each run printed")
    options = parser.parse_args()
    first, end = map(int, options.seeds.split(".."))
    counts = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for seed, verdict, took, text in pool.map(lambda seed: run(options, seed), range(first, end)):
            counts[verdict] += 1
            print(f"seed {seed}: {verdict} after {took:.1f} s", flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{seed}.txt").write_text(text)
    print(", ".join(f"{verdict}: {count}" for verdict, count in counts.most_common()))


main()
