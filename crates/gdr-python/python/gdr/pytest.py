"""A plugin for pytest: tests under `gdr check`, and under seeds of faults.

    # conftest.py
    pytest_plugins = ["gdr.pytest"]

    @pytest.mark.gdr_check
    def test_transfer(): ...

    @pytest.mark.gdr_chaos("drop p=1%; hang p=0.1%", seeds=20, deadline=30)
    def test_recovers_or_fails_in_time(): ...

Libraries take the place of others when a program starts, so such a test runs in processes of its own, with its
fixtures, and not in the process of pytest. Under gdr_check it fails with the report of what RDMA does not allow; under
gdr_chaos with the seeds under which it failed or hung, each with the faults that it takes. Without a scenario the
faults are such that networks have at any time. `options` are further options of the command, such as
("--nic", "127.0.0.1").
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import pytest

from gdr._command import command_path

# Names the file of the reports of a test that runs in a process of its own.
_REPORT = "GDR_PYTEST_REPORT"
# Seconds for the start of Python and pytest, beside the test.
_START = 60.0


def pytest_configure(config):
    config.addinivalue_line("markers", "gdr_check(options=(), deadline=300): runs the test under gdr check")
    config.addinivalue_line(
        "markers",
        "gdr_chaos(scenario=None, seeds=10, first=1, deadline=30, options=()): runs the test under seeds of faults",
    )


def pytest_runtest_logreport(report):
    path = os.environ.get(_REPORT)
    if path and (report.when == "call" or report.outcome != "passed"):
        with open(path, "a", encoding="utf-8") as file:
            json.dump({"outcome": report.outcome, "text": report.longreprtext}, file)
            file.write("\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if _REPORT in os.environ:
        return None
    check, chaos = (item.get_closest_marker(name) for name in ("gdr_check", "gdr_chaos"))
    if check is None and chaos is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    began = time.time()
    if check is not None and chaos is not None:
        outcome, text = "failed", "a test has gdr_check or gdr_chaos, not both"
    elif check is not None:
        outcome, text = _check(item, *check.args, **check.kwargs)
    else:
        outcome, text = _chaos(item, *chaos.args, **chaos.kwargs)
    ended = time.time()
    longrepr = (str(item.path), item.location[1] or 0, text) if outcome == "skipped" else text or None
    report = pytest.TestReport(
        item.nodeid, item.location, dict(item.keywords), outcome, longrepr, "call",
        duration=ended - began, start=began, stop=ended,
    )
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _check(item, options=(), deadline=300.0):
    with tempfile.TemporaryDirectory() as folder:
        found = os.path.join(folder, "found")
        status, output, reports = _run(item, ["check", *options, "-o", found], deadline + _START, folder)
        if status == 120:
            with open(found, encoding="utf-8") as file:
                return "failed", file.read()
    if status is None:
        return "failed", f"the test did not end within {deadline} s"
    return _outcome(status, output, reports)


def _chaos(item, scenario=None, seeds=10, first=1, deadline=30.0, options=()):
    command = ["chaos", *options, f"--fuzz={seeds}", f"--first={first}", f"--deadline={deadline:g}"]
    if scenario is not None:
        command.append(f"--chaos={scenario}")
    with tempfile.TemporaryDirectory() as folder:
        # Where it fails, rules are left out one by one.
        limit = 20 * seeds * (deadline + _START)
        status, output, reports = _run(item, command, limit, folder)
    if status is None:
        return "failed", f"{seeds} seeds did not end within {limit:g} s"
    return _outcome(status, output, reports)


def _outcome(status, output, reports):
    failures = [report["text"] for report in reports if report["outcome"] == "failed"]
    if status != 0:
        return "failed", "\n".join([*failures[:1], output.strip()])
    if reports and all(report["outcome"] == "skipped" for report in reports):
        return "skipped", reports[0]["text"]
    return "passed", ""


def _run(item, command, limit, folder):
    """Runs the test under a command of gdr; returns its status, or None after the limit, and what it said."""
    reports = os.path.join(folder, "reports")
    test = [sys.executable, "-m", "pytest", "-q", "-p", "gdr.pytest", "-p", "no:cacheprovider", item.nodeid]
    try:
        done = subprocess.run(
            [command_path(), *command, "--", *test],
            cwd=item.config.rootpath,
            env={**os.environ, _REPORT: reports},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "", []
    said = []
    if os.path.exists(reports):
        with open(reports, encoding="utf-8") as file:
            said = [json.loads(line) for line in file]
    output = (done.stdout + done.stderr).decode(errors="replace")
    return done.returncode, output, said
