"""The gdr command and the C library in this package."""

import json
import os
import subprocess
from importlib.resources import files

from gdr._gdr import Error

# Exit statuses after which the command has printed its report: healthy, a warning, a failure,
# undecided.
_REPORTED = (0, 1, 2, 3)


def command_path() -> str:
    """Returns the path of the gdr command."""
    return _part("bin/gdr")


def library_path() -> str:
    """Returns the path of libgdrapi.so.2, GDRCopy's C interface."""
    return _part("lib/libgdrapi.so.2")


def doctor(*arguments: str, timeout: float = 120.0) -> dict:
    """Returns the report of `gdr doctor --json`. Further arguments are passed to the command."""
    return _report("doctor", arguments, timeout)


def topology(*arguments: str, timeout: float = 120.0) -> dict:
    """Returns the report of `gdr topo --json`. Further arguments are passed to the command."""
    return _report("topo", arguments, timeout)


def _part(name: str) -> str:
    path = os.fspath(files("gdr").joinpath(name))
    if not os.path.exists(path):
        raise Error(f"{path} is missing: install the wheel again, or build it by `cargo xtask wheel`")
    return path


def _report(verb: str, arguments: tuple[str, ...], timeout: float) -> dict:
    command = [command_path(), verb, "--json", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as expired:
        raise TimeoutError(f"gdr {verb} did not end within {timeout} s") from expired
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = None
    if done.returncode not in _REPORTED or not isinstance(report, dict):
        reason = done.stderr.decode(errors="replace").strip()
        raise Error(f"gdr {verb} ended with status {done.returncode}: {reason}")
    return report
