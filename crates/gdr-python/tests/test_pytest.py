"""The plugin for pytest: marked tests run under gdr, and fail with what it says."""

import os
import subprocess
import sys

from conftest import LIMIT_S

# How a test opens its device, by the C interface.
VERBS = '''
import ctypes
import os

import pytest

def device():
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
    verbs.ibv_open_device.restype = ctypes.c_void_p
    verbs.ibv_close_device.argtypes = [ctypes.c_void_p]
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    assert count.value == 1
    return verbs, verbs.ibv_open_device(devices[0])
'''


def run(folder, body):
    """What pytest says of a file of tests."""
    (folder / "conftest.py").write_text('pytest_plugins = ["gdr.pytest"]\n')
    (folder / "test_it.py").write_text(VERBS + body)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", f"--rootdir={folder}", folder]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.stdout


def test_a_marked_test_has_a_device_and_a_process_of_its_own(tmp_path):
    said = run(
        tmp_path,
        f'''
@pytest.fixture
def parent():
    return {{"pid": os.getpid()}}

@pytest.mark.gdr_check(options=("--nic", "127.0.0.1"))
def test_passes(parent):
    verbs, context = device()
    assert context and os.getppid() != {os.getpid()}
    verbs.ibv_close_device(context)

@pytest.mark.gdr_check(options=("--nic", "127.0.0.1"))
def test_fails():
    assert device() == "no pair"

@pytest.mark.gdr_check
def test_skips():
    pytest.skip("a reason of its own")

def test_without_a_mark():
    assert "LD_PRELOAD" not in os.environ
''',
    )
    assert "2 passed, 1 failed" in said.replace("1 failed, 2 passed", "2 passed, 1 failed"), said
    assert "no pair" in said and "a reason of its own" in said, said


def test_a_scenario_that_strikes_fails_with_its_seed(tmp_path):
    said = run(
        tmp_path,
        '''
@pytest.mark.gdr_chaos("refuse-registration", seeds=2, options=("--nic", "127.0.0.1"))
def test_registers():
    verbs, context = device()
    verbs.ibv_alloc_pd.argtypes = [ctypes.c_void_p]
    verbs.ibv_alloc_pd.restype = ctypes.c_void_p
    verbs.ibv_reg_mr.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    verbs.ibv_reg_mr.restype = ctypes.c_void_p
    bytes = ctypes.create_string_buffer(4096)
    assert verbs.ibv_reg_mr(verbs.ibv_alloc_pd(context), bytes, 4096, 1), "not registered"
''',
    )
    assert "1 failed" in said, said
    assert "not registered" in said and "--chaos 'seed=1; refuse-registration" in said, said
