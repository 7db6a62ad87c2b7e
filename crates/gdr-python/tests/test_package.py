"""The package: its command, its library, its reports and its types."""

import ast
import ctypes
import importlib.metadata
import inspect
import os
import subprocess
import sys
from pathlib import Path

import gdr
import pytest
from conftest import LIMIT_S, CudaArray


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "gdr", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_the_module_is_the_command():
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.split()[:2] == ["gdr", gdr.__version__]
    assert run("no-such-verb").returncode == 64


def test_the_library_is_the_c_interface_of_gdrcopy():
    path = run("libpath").stdout.strip()
    assert path == gdr.library_path()
    library = ctypes.CDLL(path)
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.gdr_runtime_get_version(ctypes.byref(major), ctypes.byref(minor))
    assert major.value == 2


def test_reports_of_the_command_are_dictionaries():
    doctor = gdr.doctor("--example", timeout=LIMIT_S)
    assert doctor["schema"] == "gdr.doctor"
    assert doctor["findings"]
    topology = gdr.topology("--example", timeout=LIMIT_S)
    assert topology["schema"] == "gdr.topo"


def test_a_report_that_fails_is_an_error_with_the_commands_words():
    with pytest.raises(gdr.Error, match="status 64.*--no-such-option"):
        gdr.doctor("--no-such-option", timeout=LIMIT_S)


def test_a_probe_names_the_memory_and_every_way_to_it():
    memory = gdr.DeviceMemory(1 << 20, device=1, kind="vmm")
    report = gdr.probe(CudaArray(memory, (1 << 20,), "|u1"))
    assert report["address"] == memory.address
    assert report["bytes"] == 1 << 20
    assert report["simulated"] is True
    assert report["gpu"]["device"] == 1
    assert report["allocator"] == "cuMemCreate"
    assert report["cpu"]["backend"] == "sim"
    assert report["cpu"]["routes"] == [
        {"route": "simulated memory", "method": "sim", "rejected": []}
    ]
    assert isinstance(report["nics"], list)


def test_the_environment_without_a_gpu_is_an_error_and_never_simulated():
    program = "import gdr\ntry: gdr.DeviceMemory(1)\nexcept gdr.Error as error: print(error)"
    environment = {**os.environ, "GDR_BACKEND": "rm", "GDR_LIBCUDA": "/nonexistent/libcuda.so.1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert "/nonexistent/libcuda.so.1" in done.stdout
    assert "GDR_BACKEND=sim" in done.stdout


MAPS_AGAIN = """
import sys, gdr
memory = gdr.DeviceMemory(4096)
with gdr.map(memory) as mapping:
    mapping.write(b"kept")
with open(sys.argv[1], "w") as profile:
    profile.write("something else")
with gdr.map(memory) as mapping:
    print(mapping.read(nbytes=4).decode())
"""


def test_the_profile_of_copies_is_read_at_the_first_mapping_of_a_process_only(tmp_path):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def python(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    tuned = python("-m", "gdr", "tune", "--size", "4K")
    assert tuned.returncode == 0, tuned.stderr
    (profile,) = tmp_path.glob("gdr/copy/*.profile")
    done = python("-c", MAPS_AGAIN, str(profile))
    assert done.stdout.strip() == "kept", done.stderr
    # The file that the first process left is of no use, which the first mapping of another finds.
    assert "first line" in python("-c", MAPS_AGAIN, str(profile)).stderr


def test_the_stubs_name_what_the_package_has():
    stub = ast.parse(Path(gdr.__file__).with_suffix(".pyi").read_text())
    functions = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    public = {*functions, *(name for name in classes if not name.startswith("_")), "__version__"}
    assert public == set(gdr.__all__)
    for name, node in functions.items():
        assert parameters(node) == parameters_of(getattr(gdr, name)), name
    for name, node in classes.items():
        if name.startswith("_"):
            continue
        if issubclass(getattr(gdr, name), gdr.Error):
            fields = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
            given = set(parameters_of(getattr(gdr, name).__init__))
            given -= {"self", "text", "args", "kwargs"}
            assert fields == given, name
            continue
        members = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
        kind = getattr(gdr, name)
        found = {each for each in vars(kind) if not each.startswith("__")}
        assert found == {each for each in members if not each.startswith("__")}, name
        for member, each in members.items():
            is_property = any(
                isinstance(mark, ast.Name) and mark.id == "property" or isinstance(mark, ast.Attribute)
                for mark in each.decorator_list
            )
            if not is_property and not member.startswith("__"):
                assert parameters(each) == parameters_of(getattr(kind, member)), f"{name}.{member}"


def parameters(node):
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args]
    every += [arguments.vararg] if arguments.vararg else []
    return [argument.arg for argument in every + arguments.kwonlyargs]


def parameters_of(function):
    return list(inspect.signature(function).parameters)


def test_types_are_marked():
    assert Path(gdr.__file__).with_name("py.typed").exists()


@pytest.mark.skipif("GDR_WHEEL" not in os.environ, reason="not installed from a wheel")
def test_the_installed_command_is_on_the_path():
    assert importlib.metadata.version("gdr") == gdr.__version__
    command = Path(sys.executable).with_name("gdr")
    done = subprocess.run(
        [command, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout.split()[:2] == ["gdr", gdr.__version__]
