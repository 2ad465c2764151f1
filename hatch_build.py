"""Builds src/ctld/kernels/kernels.c when the package is installed. Without a C compiler the package installs all the same."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# No fused multiply-adds and nothing of -ffast-math: the numbers are to be the same bits on every machine. No -march either:
# the code chooses among processor features when it runs.
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC"]


class Kernels(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / "src" / "ctld" / "kernels"
        library = folder / "_kernels.so"
        library.unlink(missing_ok=True)  # a stale one would be worse than none
        if os.environ.get("CTLD_NO_NATIVE"):
            return
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None or sys.platform == "win32":
            self.app.display_warning(
                "ctld: no C compiler that this build knows; torch will do the steps, ten to twenty times slower"
            )
            return
        unfinished = library.with_suffix(".unfinished.so")
        for threads in (["-fopenmp"], []):  # a compiler may lack OpenMP: one thread is better than none
            command = [*compiler.split(), *FLAGS, *threads, str(folder / "kernels.c"), "-o", str(unfinished), "-lm"]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode == 0:
                break
        else:
            self.app.display_warning(f"ctld: {' '.join(command)} failed; steps will be slower\n{result.stderr}")
            unfinished.unlink(missing_ok=True)
            return
        os.replace(unfinished, library)
        build_data["artifacts"].append("src/ctld/kernels/_kernels.so")
        build_data["pure_python"] = False
        # Plain C through ctypes: tied to the platform, not to a version of Python.
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
