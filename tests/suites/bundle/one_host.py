#!/usr/bin/env python3
"""Measures other programs between two processes of one host: over gdr's device, and over what it competes with.

    one_host.py measure FILE.json     measures in turns, and writes every value
    one_host.py draw FILE.json        prints a picture of them (SVG)

Uses perftest, UCX's ucx_perftest and, with two GPUs, nccl-tests, built with MPI=1 in the folder NCCL_TESTS, where they
are installed, and names what is missing. GDR names the gdr command.
"""

import datetime
import html
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

TURNS = int(os.environ.get("TURNS", "5"))
GDR = os.environ.get("GDR", "gdr")
# The longest that any program may take, in seconds.
LIMIT = 120
MIB = 1 << 20
PERFTEST = [
    # Command, bytes, iterations, unit, column of the result, factor to the unit.
    ("ib_write_lat", 8, 50_000, "us", 4, 1),
    ("ib_send_lat", 8, 50_000, "us", 4, 1),
    ("ib_write_bw", 64, 1_000_000, "million/s", 4, 1),
    # By lists of requests.
    ("ib_write_bw -l 16", 64, 1_000_000, "million/s", 4, 1),
    ("ib_write_bw", 65_536, 50_000, "GB/s", 3, MIB / 1e9),
]
UCX = [
    ("tag_lat", 8, 50_000, "us", 2, 1),
    ("tag_bw", MIB, 2_000, "GB/s", 5, MIB / 1e9),
]
UCX_BY = {
    "gdr": {"UCX_TLS": "rc_v,self", "UCX_NET_DEVICES": "gdr0:1"},
    "shared memory": {"UCX_TLS": "posix,cma,self"},
    "TCP": {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"},
}
NCCL_BY = {
    "gdr": {"NCCL_SHM_DISABLE": "1"},
    "shared memory": {},
    "TCP": {"NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"},
}
COLORS = {"gdr": "#0969da", "shared memory": "#57606a", "TCP": "#bc4c00"}

ports = iter(range(18_600, 30_000))


def on_device(by, command):
    """Returns the command, as a program of gdr's device where it is to use that."""
    return [GDR, "run", "--nic", "127.0.0.1", "--only-soft", "--", *command] if by == "gdr" else command


def is_listening(port):
    # Without IPv6 there is only the first one.
    tables = [table for table in ("/proc/net/tcp", "/proc/net/tcp6") if os.path.exists(table)]
    lines = [line for table in tables for line in open(table)]
    return any(f":{port:04X} " in line and " 0A " in line for line in lines)


def pair(by, program, arguments, variables=None):
    """Runs a server and its client, and returns what the client printed."""
    port = next(ports)
    environment = os.environ | (variables or {})
    server = subprocess.Popen(
        on_device(by, [program, "-p", str(port)] + (arguments if program.startswith("ib_") else [])),
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        limit = time.monotonic() + LIMIT
        while not is_listening(port):
            if server.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"{program}: the server does not listen")
            time.sleep(0.01)
        client = subprocess.run(
            on_device(by, [program, "127.0.0.1", "-p", str(port), *arguments]),
            env=environment, capture_output=True, text=True, timeout=LIMIT,
        )
        if client.returncode != 0:
            raise RuntimeError(f"{program}: {(client.stderr or client.stdout)[-500:]}")
        return client.stdout
    finally:
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def perftest(command, size, iterations, column, factor):
    program, *options = command.split()
    out = pair("gdr", program, [*options, "-s", str(size), "-n", str(iterations), "-F"])
    line = [line for line in out.splitlines() if re.match(rf"\s*{size}\s", line)][-1]
    return float(line.split()[column]) * factor


def ucx(by, test, size, iterations, column, factor):
    out = pair(by, "ucx_perftest", ["-t", test, "-s", str(size), "-n", str(iterations)], UCX_BY[by])
    line = [line for line in out.splitlines() if line.startswith("Final:")][-1]
    return float(line.split()[column]) * factor


def allreduce(by):
    """Returns microseconds by size."""
    environment = os.environ | {"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"} | NCCL_BY[by]
    rank = 'NCCL_HOSTID=host$OMPI_COMM_WORLD_RANK exec "$@"' if by != "shared memory" else 'exec "$@"'
    # Each rank has one of the GPUs.
    command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", "2", "bash", "-c", rank, "rank",
               "all_reduce_perf", "-b", "8", "-e", str(256 * MIB), "-f", "2", "-n", "20", "-w", "5", "-c", "1"]
    run = subprocess.run(on_device(by, command), env=environment, capture_output=True, text=True, timeout=LIMIT)
    rows = [line.split() for line in run.stdout.splitlines() if re.match(r"\s+\d+\s+\d+\s+float", line)]
    if run.returncode != 0 or not rows:
        raise RuntimeError(f"all_reduce_perf: {(run.stderr or run.stdout)[-500:]}")
    # Size, time and wrong values out of place; those in place follow.
    wrong = sum(int(row[column]) for row in rows for column in (8, 12) if row[column] != "N/A")
    if wrong:
        raise RuntimeError(f"all_reduce_perf: {wrong} wrong values over {by}")
    return {int(row[0]): float(row[5]) for row in rows}


def first_line(path, pattern):
    try:
        with open(path) as file:
            return next((found.group(1).strip() for found in (re.search(pattern, line) for line in file) if found), None)
    except OSError:
        return None


def gpus():
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, timeout=LIMIT).stdout.split("\n")[:-1]


def measure(path):
    figures = {}

    def add(test, size, unit, by, value):
        figure = figures.setdefault((test, size, by), {"test": test, "bytes": size, "unit": unit, "by": by, "values": []})
        figure["values"].append(value)

    devices = gpus()
    os.environ["PATH"] += ":" + os.environ.get("NCCL_TESTS", "")
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    missing = [program for program in ("ib_write_lat", "ucx_perftest", "all_reduce_perf", "mpirun") if not shutil.which(program)]
    if len(devices) < 2:
        missing.append("second GPU")
    if {"ib_write_lat", "ucx_perftest"} <= set(missing):
        print("neither perftest nor UCX is installed", file=sys.stderr)
        sys.exit(77)
    for program in missing:
        print(f"not measured: no {program}", file=sys.stderr)
    has_nccl = not {"all_reduce_perf", "mpirun", "second GPU"} & set(missing)
    for turn in range(TURNS):
        print(f"turn {turn + 1} of {TURNS}", file=sys.stderr)
        if "ib_write_lat" not in missing:
            for command, size, iterations, unit, column, factor in PERFTEST:
                add(command, size, unit, "gdr", perftest(command, size, iterations, column, factor))
        if "ucx_perftest" not in missing:
            for test, size, iterations, unit, column, factor in UCX:
                for by in UCX_BY:
                    add(f"UCX {test}", size, unit, by, ucx(by, test, size, iterations, column, factor))
        if has_nccl:
            for by in NCCL_BY:
                for size, value in allreduce(by).items():
                    add("NCCL allreduce", size, "us", by, value)
    document = {
        "schema": "gdr.one-host",
        "version": 1,
        "date": datetime.date.today().isoformat(),
        "cpu": first_line("/proc/cpuinfo", r"^model name\s*:(.*)"),
        "cpus": os.cpu_count(),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "driver": first_line("/proc/driver/nvidia/version", r"Module\s.*?(\d+\.\d[\d.]*)"),
        "gpus": devices,
        "turns": TURNS,
        "figures": list(figures.values()),
    }
    with open(path, "w") as file:
        json.dump(document, file, indent=1)
    for figure in figures.values():
        values = figure["values"]
        print(f"{figure['test']}\t{figure['bytes']}\t{figure['by']}\t{statistics.median(values):.3g}"
              f" ({min(values):.3g} to {max(values):.3g}) {figure['unit']}")


def words(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


class Picture:
    """Lines of an SVG."""

    def __init__(self):
        self.lines = []

    def text(self, x, y, content, **attributes):
        self.put("text", html.escape(str(content)), x=x, y=y, **attributes)

    def put(self, name, content="", **attributes):
        written = " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        self.lines.append(f"<{name} {written}>{content}</{name}>" if content else f"<{name} {written}/>")

    def whole(self, width, height):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
                ' font-family="system-ui, \'DejaVu Sans\', sans-serif" font-size="12">')
        return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *self.lines, "</svg>"])


def ticks(low, high, steps):
    """Returns round numbers that enclose both: `steps` times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [step * 10.0 ** power for power in powers for step in steps]
    first = max(mark for mark in marks if mark <= low)
    last = min(mark for mark in marks if mark >= high)
    return [mark for mark in marks if first <= mark <= last]


def draw(path):
    with open(path) as file:
        document = json.load(file)
    picture, left, right, y = Picture(), 170, 870, 28
    picture.text(left, y, "Two processes of one host", font_size=16, font_weight=600)
    machine = f"{document['cpus']} CPUs ({document['cpu']}), Linux {document['kernel']}"
    if document["gpus"]:
        machine += f", {len(document['gpus'])} x {document['gpus'][0]}, driver {document['driver']}"
    picture.text(left, y + 20, machine, fill="#57606a")
    picture.text(left, y + 38, f"{document['date']}; medians of {document['turns']} turns, with lowest and highest", fill="#57606a")
    for index, (by, color) in enumerate(COLORS.items()):
        picture.put("circle", cx=left + 6 + 150 * index, cy=y + 56, r=5, fill=color)
        picture.text(left + 16 + 150 * index, y + 60, {"gdr": "gdr's device"}.get(by, by))
    y += 80
    for unit, title in (("us", "microseconds (less is better)"), ("GB/s", "GB/s"), ("million/s", "million messages a second")):
        figures = [figure for figure in document["figures"] if figure["unit"] == unit and figure["test"] != "NCCL allreduce"]
        if figures:
            y = dots(picture, figures, title, left, right, y)
    figures = [figure for figure in document["figures"] if figure["test"] == "NCCL allreduce"]
    if figures:
        y = curves(picture, figures, left, right, y)
    print(picture.whole(900, y))


def dots(picture, figures, title, left, right, y):
    """Draws a row for each test. Returns where the next panel begins."""
    values = [value for figure in figures for value in figure["values"]]
    marks = ticks(min(values), max(values), (1, 2, 5))
    span = math.log10(marks[-1] / marks[0])
    rows = list(dict.fromkeys((figure["test"], figure["bytes"]) for figure in figures))
    bottom = y + 18 + 34 * len(rows)

    def at(value):
        return round(left + (right - left) * math.log10(value / marks[0]) / span, 1)

    picture.text(left, y + 8, title, fill="#57606a")
    for mark in marks:
        picture.put("line", x1=at(mark), y1=y + 14, x2=at(mark), y2=bottom, stroke="#d8dee4")
        picture.text(at(mark), bottom + 15, f"{mark:g}", text_anchor="middle")
    for index, row in enumerate(rows):
        height = y + 36 + 34 * index
        picture.text(left - 10, height + 4, f"{row[0]} {words(row[1])}", text_anchor="end")
        for figure in figures:
            if (figure["test"], figure["bytes"]) == row:
                color, middle = COLORS[figure["by"]], statistics.median(figure["values"])
                low, high = min(figure["values"]), max(figure["values"])
                picture.put("line", x1=at(low), y1=height, x2=at(high), y2=height, stroke=color, stroke_width=2, opacity=0.5)
                said = f"{figure['by']}: {middle:.3g} ({low:.3g} to {high:.3g}) {figure['unit']}"
                picture.put("circle", f"<title>{html.escape(said)}</title>", cx=at(middle), cy=height, r=5, fill=color)
                picture.text(at(middle), height - 8, f"{middle:.3g}", text_anchor="middle", fill=color, font_size=11)
    return bottom + 40


def curves(picture, figures, left, right, y):
    """Draws a curve of medians for each transport. Returns where the picture ends."""
    sizes = sorted({figure["bytes"] for figure in figures})
    medians = {(figure["by"], figure["bytes"]): statistics.median(figure["values"]) for figure in figures}
    marks = ticks(min(medians.values()), max(medians.values()), (1,))
    top, bottom = y + 18, y + 318

    def place(size, value):
        x = left + (right - left) * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])
        return round(x, 1), round(bottom - (bottom - top) * math.log(value / marks[0]) / math.log(marks[-1] / marks[0]), 1)

    picture.text(left, y + 8, "NCCL allreduce of two GPUs, one process each: microseconds by size", fill="#57606a")
    for mark in marks:
        height = place(sizes[0], mark)[1]
        picture.put("line", x1=left, y1=height, x2=right, y2=height, stroke="#d8dee4")
        picture.text(left - 8, height + 4, f"{mark:g}", text_anchor="end")
    for size in sizes:
        x = place(size, marks[0])[0]
        picture.text(x, bottom + 16, words(size), text_anchor="middle", font_size=10)
    for by, color in COLORS.items():
        points = [(size, medians[by, size]) for size in sizes if (by, size) in medians]
        places = [place(size, value) for size, value in points]
        picture.put("polyline", fill="none", stroke=color, stroke_width=2, points=" ".join(f"{x},{y}" for x, y in places))
        for (size, value), (x, height) in zip(points, places):
            said = f"{by}, {words(size)}: {value:.4g} us"
            picture.put("circle", f"<title>{html.escape(said)}</title>", cx=x, cy=height, r=3.5, fill=color)
    return bottom + 40


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", path]:
            measure(path)
        case ["draw", path]:
            draw(path)
        case _:
            sys.exit(__doc__)
