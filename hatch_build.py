"""Builds src/ctld/noise/native.c when the package is installed. Without a C compiler the package installs all the same."""

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
FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC"]


class NativeNoise(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / "src" / "ctld" / "noise"
        library = folder / "_native.so"
        library.unlink(missing_ok=True)  # a stale one would be worse than none
        if os.environ.get("CTLD_NO_NATIVE"):
            return
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None or sys.platform == "win32":
            self.app.display_warning(
                "ctld: no C compiler that this build knows; the noise will be computed by torch, about ten times slower"
            )
            return
        unfinished = library.with_suffix(".unfinished.so")
        command = [*compiler.split(), *FLAGS, str(folder / "native.c"), "-o", str(unfinished), "-lm"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            self.app.display_warning(f"ctld: {' '.join(command)} failed; the noise will be slower\n{result.stderr}")
            unfinished.unlink(missing_ok=True)
            return
        os.replace(unfinished, library)
        build_data["artifacts"].append("src/ctld/noise/_native.so")
        build_data["pure_python"] = False
        # Plain C through ctypes: tied to the platform, not to a version of Python.
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
