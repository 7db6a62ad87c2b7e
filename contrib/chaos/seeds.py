"""Runs a job of two processes under many seeds of one fault, and counts how the runs end.

    python3 seeds.py perftest|ucx|mpi|nixl|mooncake|nccl flap|hang|kill|check [--seeds 0..100] [--jobs 4] [--deadline 30]

A run recovers (it ends well), fails (it ends otherwise), hangs (it does not end before the deadline), has wrong
bytes, or was not struck. With `check` nothing goes wrong, and both ends run under `gdr check`: it is silent, or
reports errors. Needs gdr and the job's programs: perftest; ucx_perftest; mpirun and mpi_messages in the PATH; the
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
PERFTEST = [
    "ib_write_bw -F -a -n 1000",
    "ib_read_bw -F -a -n 1000",
    "ib_send_bw -F -a -n 1000",
    "ib_send_bw -F -b -q 4",
    "ib_send_bw -F --use-srq -q 4 -s 4096",
    "ib_send_bw -F -c UD -s 1024",
    "ib_write_bw -F -c UC -s 65536",
    "ib_write_bw -F -q 8 -b -s 4096",
    "ib_atomic_bw -F",
    "ib_atomic_lat -F",
    "ib_write_lat -F -s 8",
    "ib_send_lat -F -s 9000",
    "ib_send_lat -F -c UD -s 512",
    "ib_read_lat -F -s 70000",
]
UCX = ["tag_bw", "tag_lat", "stream_bw", "stream_lat", "ucp_am_bw", "ucp_am_lat", "ucp_get", "ucp_put_lat"]
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


def commands(job, ends, variant):
    """The commands of a run: the one that decides how it ended, and a second one before it or none."""
    port = free_port()
    if job == "mpi":
        ranks = [f"-n 1 {' '.join(map(quoted, ends[end]))} mpi_messages" for end in ("initiator", "target")]
        return [["sh", "-c", f"exec {MPI} {' : '.join(ranks)}"]]
    if job in ("perftest", "ucx"):
        run = ["ucx_perftest", "-t", UCX[variant % len(UCX)], "-s", "65536", "-n", "20000", "-w", "10", "-p", port]
        if job == "perftest":
            run = [*PERFTEST[variant % len(PERFTEST)].split(), "-p", port]
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
    checks, nic = options.fault == "check", ["--nic", f"127.0.3.{1 + seed % 250}"]
    settings = {**os.environ, **SETTINGS}
    if checks and seed % 2:
        settings["UCX_TLS"] = "self,ud_v"
    with tempfile.TemporaryDirectory() as folder:
        log, output = os.path.join(folder, "chaos.log"), os.path.join(folder, "output")
        ends = dict.fromkeys(("initiator", "target"), ["gdr", "check" if checks else "run", *nic, "--"])
        if not checks:
            scenario, struck_end = fault(options.fault, options.job, seed)
            strike = ["--chaos", scenario, "--seed", str(seed), "--chaos-log", log]
            ends[struck_end] = ["gdr", "run", *nic, *strike, "--"]
        begin, processes = time.monotonic(), []
        with open(output, "wb") as out:
            for command in reversed(commands(options.job, ends, seed // 2 if checks else 0)):
                if options.job in ("perftest", "ucx") and processes:
                    time.sleep(1)  # They do not try again to connect.
                processes.append(
                    subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, env=settings)
                )
            try:
                status = processes[-1].wait(options.deadline)
                if checks:
                    status = max(status, processes[0].wait(options.deadline))
            except subprocess.TimeoutExpired:
                status = None
        took = time.monotonic() - begin
        for process in processes:
            end(process)
        text = pathlib.Path(output).read_text(errors="replace")
        faults = pathlib.Path(log).read_text() if os.path.exists(log) else ""
    if "WRONG BYTES" in text:
        verdict = "wrong bytes"
    elif checks:
        verdict = {None: "hangs", 0: "silent", 120: "reports errors"}.get(status, "fails")
    elif "rule=" not in faults:
        verdict = "not struck"
    else:
        verdict = {None: "hangs", 0: "recovers"}.get(status, "fails")
    return seed, verdict, took, text + faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("perftest", "ucx", "mpi", "nixl", "mooncake", "nccl"))
    parser.add_argument("fault", choices=("flap", "hang", "kill", "check"))
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
