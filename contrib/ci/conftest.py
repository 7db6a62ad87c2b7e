"""RDMA devices for tests: copy this file beside them, and run `gdr run -- pytest`.

A test that needs a device has the fixture `rdma_devices`, and is skipped where there is none; with RDMA_REQUIRED set it
fails there. The fixture `hosts` runs a command on several hosts of `gdr net`.
"""

import os
import pathlib
import subprocess

import pytest


@pytest.fixture
def rdma_devices():
    """The names of the RDMA devices."""
    folder = pathlib.Path("/sys/class/infiniband")
    names = sorted(os.listdir(folder)) if folder.exists() else []
    if not names:
        complain = pytest.fail if os.environ.get("RDMA_REQUIRED") else pytest.skip
        complain("no RDMA device: run it as `gdr run -- pytest`")
    return names


@pytest.fixture
def hosts():
    """Runs a command on a number of hosts; returns the lines of all, each after the name of its host."""

    def run(number, *command, timeout=60):
        ended = subprocess.run(
            ["gdr", "net", "--hosts", str(number), "--", *command],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if "hosts need network namespaces" in ended.stderr:
            pytest.skip(ended.stderr)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout.splitlines()

    return run
