# SPDX-License-Identifier: Apache-2.0
"""The machine that a study runs on, for its report."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("dpdk", "libdpdk-dev", "libpcap0.8", "libpcap0.8t64", "qemu-system-x86", "iproute2", "clang")
LIBRARIES = ("numpy", "scipy", "pandas", "statsmodels", "matplotlib")


def output(*command: str) -> str:
    """What a command prints; empty where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def processor() -> str:
    """The processor's model."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def system() -> str:
    """The distribution's name."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def version(library: str) -> str:
    """The version of a Python library."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "missing"


def inspect(root: Path) -> dict[str, str]:
    """The processor, the kernel, the commit and the packages."""
    commit = output("git", "-c", "safe.directory=*", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    installed = output("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n", *PACKAGES)
    packages = [line.split(" ", 1)[1] for line in installed.splitlines() if line.startswith("installed ")]
    return {
        "processor": processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "system": system(),
        "commit": commit or "unknown",
        "packages": ", ".join(packages) or "unknown",
        "python": f"{platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in LIBRARIES),
    }
