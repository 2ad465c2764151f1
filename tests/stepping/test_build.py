"""The build of the kernels: the same bits by either compiler, and what is left to read where there is none."""

import ctypes
import importlib.util
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ctld.stepping import engine, native
from ctld.stepping.active import Active
from ctld.stepping.foreach import Noise, momentum_dtype
from ctld.stepping.integrators import INTEGRATORS, sgd
from ctld.stepping.sweep import PsgldPlan, SantaPlan

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "ctld" / "stepping"
PLANS = [
    *(make(0.1, 0.9, 1e-3, decay=1e-2) for make in INTEGRATORS.values()),
    sgd(0.1, 0.9, decay=1e-2),
    PsgldPlan(0.1, 0.01, 0.99, 1e-5),
    SantaPlan(0.1, 1e-3, 1e-3, 0.99, 1e-5, True, True),
    SantaPlan(0.1, 1e-3, 1e-3, 0.99, 1e-5, False, True),
]
needs_library = pytest.mark.skipif(native.stepper() is None, reason="there is no library to compare with")


@pytest.fixture(scope="module")
def hatch_build():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps(library, monkeypatch):
    """What a library makes of parameters, momenta and sums, with every plan, dtype and level: bytes."""
    monkeypatch.setattr(native, "load", lambda: library)
    found = []
    for level, plan, dtype in itertools.product(range(library.level + 1), PLANS, native.TYPES):
        generator = torch.Generator().manual_seed(1)
        tensors = [torch.randn(size, generator=generator).to(dtype) for size in (1, 257, 5000)]
        names = ("momentum_buffer", "square_average", "thermostat")
        state = {}
        for tensor in tensors:
            tensor.grad = torch.randn(tensor.shape, generator=generator).to(dtype)
            like = {"dtype": momentum_dtype(tensor), "generator": generator}
            state[tensor] = {name: torch.rand(tensor.shape, **like) for name in names} | {"steps": 1}
        active = Active([tensors], state, 7)
        active.table.set_level(level)
        for step in range(3):
            sums = engine.run(active, [plan], Noise("gaussian", 11, step), check=True)
        found.append(repr(sums).encode())
        buffers = [*tensors, *(state[tensor][name] for tensor in tensors for name in names)]
        found += [bytes(buffer.contiguous().view(torch.uint8).numpy()) for buffer in buffers]
        found.append(repr(engine.square_norms(active)).encode())
    for kind in ("gaussian", "three_point"):
        found.append(bytes(library.numbers(kind, 5, 3, 2, 17, 4001).view(torch.uint8).numpy()))
    return found


@pytest.mark.slow
@needs_library
def test_the_other_compiler_gives_the_bits_of_the_installed_library(hatch_build, tmp_path, monkeypatch):
    """Clang leaves its name in what it builds."""
    compiler = "gcc" if b"clang version" in native.LIBRARY.read_bytes() else "clang"
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here")
    made = tmp_path / "kernels.so"
    # In one thread: two libraries of OpenMP in one process are more than it bears.
    command = [compiler, *hatch_build.FLAGS, str(SOURCES / "kernels.c"), "-o", str(made), "-lm"]
    subprocess.run(command, check=True)
    installed, other = native.load(), native.Library(ctypes.CDLL(str(made)))
    assert steps(other, monkeypatch) == steps(installed, monkeypatch)


def build(hatch_build, folder):
    """A build whose source is one function, and what it said."""
    (folder / "kernels.c").write_text("int nothing(void) { return 0; }\n")
    said = []
    return hatch_build.build(folder, said.append), "\n".join(said)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_a_cc_that_is_not_there_is_passed_over(hatch_build, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    built, said = build(hatch_build, tmp_path)
    assert built
    assert "CC = 'no-such-compiler -O1' names no program; another compiler is tried" in said
    assert (tmp_path / "_kernels.so").exists()
    assert not (tmp_path / hatch_build.FAILURE).exists()


def test_without_a_compiler_it_says_so_and_goes_on(hatch_build, tmp_path, monkeypatch):
    (tmp_path / "_kernels.so").write_bytes(b"a stale one")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    built, said = build(hatch_build, tmp_path)
    assert not built
    assert "NO C COMPILER WAS FOUND" in said
    assert not (tmp_path / "_kernels.so").exists()
    assert "install gcc or clang" in (tmp_path / hatch_build.FAILURE).read_text()


def test_a_compiler_that_fails_is_quoted(hatch_build, tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'internal compiler error: it rains' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(hatch_build, "compilers", lambda warn: [[str(broken)]])
    built, said = build(hatch_build, tmp_path)
    assert not built
    assert "THE KERNELS WERE NOT BUILT" in said
    assert "it rains" in said
    assert "it rains" in (tmp_path / hatch_build.FAILURE).read_text()


def test_it_can_be_left_out(hatch_build, tmp_path, monkeypatch):
    monkeypatch.setenv("CTLD_NO_NATIVE", "1")
    built, _ = build(hatch_build, tmp_path)
    assert not built
    assert "CTLD_NO_NATIVE was set" in (tmp_path / hatch_build.FAILURE).read_text()


@needs_library
def test_a_library_that_gives_other_numbers_is_not_used(monkeypatch, caplog):
    """And one of another version is refused."""
    fresh = native.load.__wrapped__
    monkeypatch.setitem(native._KNOWN, "gaussian", [0.0, 0.0, 0.0, 0.0])
    assert fresh() is None
    assert "do not give the known numbers" in caplog.text
    monkeypatch.setattr(native, "VERSION", -1)
    assert fresh() is None
    assert "is of version" in caplog.text


def test_a_missing_library_is_said_with_the_reason_of_the_build(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "none.so")
    monkeypatch.setattr(native, "FAILURE", tmp_path / "why.txt")
    assert native.load.__wrapped__() is None
    assert "install ctld again where there is a C compiler" in caplog.text
    (tmp_path / "why.txt").write_text("it rained when ctld was installed\n")
    assert native.load.__wrapped__() is None
    assert "it rained" in caplog.text
