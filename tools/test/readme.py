# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the README and of the tutorials, as they are written and in their order, in namespaces of its
own.

    tools/test/readme.py CHECKOUT [--programs FOLDER]

In: a checkout, best a fresh clone, in which files may be made. With --programs, what builds is left out, and the
programs come from that folder. Out: each command that fails, with its output; status 1 if one does.

A command is a line of a block `console` after `$ ` or `# `, or a whole block `sh`. A block `toml` after a line that
names a file (`first.toml`:) is that file; after "Add this to the file" it is appended to the last one; a block after
"FILE becomes" is FILE. What is not run is in SKIPPED, with the reason, and an entry there that no command has is an
error, too: so a new command runs unless somebody decides otherwise.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PAGES = ("README.md", "docs/tutorials/demo.md", "docs/tutorials/first-network.md", "docs/tutorials/first-nf.md")

# Commands that are not run: (page, pattern of the whole command, reason).
SKIPPED = (
    ("README.md", r"\./dev test", "check-release and CI run it by itself"),
    ("README.md", r"\./dev package && sudo apt install .*", "changes the machine; ./dev package --test does it in a fresh root"),
    ("README.md", r"sudo \./dev install", "changes the machine"),
    ("README.md", r"modprobe vfio-pci\n.*", "takes a NIC"),
    ("README.md", r"netvm top", "takes a terminal"),
    ("README.md", r"netvm events --follow", "does not end"),
    ("README.md", r"netvm capture --dropped -w drops\.pcapng", "does not end"),
    ("docs/tutorials/demo.md", r"\./dev demo\ntarget/demo/netvm-demo", "the README's first command"),
)
# Commands that build, for minutes.
BUILDS = re.compile(r"\./dev (demo|build)\b|cargo (new|add|build|test)\b|netvm new-nf --lang rust\b|~/nfs|by-hand")
TIMEOUT = 1800


@dataclass
class Step:
    """A command, or a file to write."""

    page: str
    line: int
    text: str
    file: str = ""
    appends: bool = False


def steps_of(page: str, text: str) -> list[Step]:
    """The commands and files of a page, in their order."""
    steps: list[Step] = []
    lines = text.splitlines()
    at = 0
    before = ""
    while at < len(lines):
        fence = re.fullmatch(r"```(\w*)", lines[at].strip())
        if not fence:
            before = lines[at].strip() or before
            at += 1
            continue
        start = at + 1
        at = start
        while lines[at].strip() != "```":
            at += 1
        block, kind = lines[start:at], fence[1]
        at += 1
        if kind == "sh" or (kind == "" and block and block[0].startswith("./dev")):
            steps.append(Step(page, start + 1, "\n".join(re.sub(r"\s+# .*", "", one) for one in block)))
        elif kind == "console":
            for offset, one in enumerate(block):
                if found := re.match(r"[$#] (.*)", one):
                    steps.append(Step(page, start + offset + 1, re.sub(r"\s+# .*", "", found[1]).strip()))
        elif kind == "toml":
            if named := re.fullmatch(r"`([\w.-]+\.toml)`:", before):
                steps.append(Step(page, start + 1, "\n".join(block) + "\n", named[1]))
            elif before.startswith("Add this to the file"):
                last = next(one for one in reversed(steps) if one.file)
                steps.append(Step(page, start + 1, "\n" + "\n".join(block) + "\n", last.file, True))
        elif named := re.search(r"`([\w./-]+)` becomes$", before):
            text_of = "\n".join(block)
            steps.append(Step(page, start + 1, f"cat > {named[1]} <<'END'\n{text_of}\nEND"))
    return steps


class Shell:
    """A shell that a page's commands run in, as a reader's."""

    def __init__(self, folder: Path, path: str) -> None:
        # No network: what cargo takes is there already.
        environment = {**os.environ, "PATH": path, "PAGER": "cat", "CARGO_NET_OFFLINE": "true"}
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen(
            ["bash"], cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        # As root there need not be a sudo, and its own PATH has no build.
        self.run('sudo() { [[ $1 != env ]] || shift; "$@"; }')

    def run(self, command: str) -> tuple[int, str]:
        """The status of the last command that failed, or 0, and the output."""
        assert self.process.stdin and self.process.stdout
        mark = f"readme-{os.getpid()}-status"
        self.process.stdin.write(f"readme=0; trap 'readme=$?' ERR\n{{ {command}\n}} </dev/null\ntrap - ERR; echo {mark} $readme\n")
        self.process.stdin.flush()
        said: list[str] = []
        for line in self.process.stdout:
            if line.startswith(mark):
                return int(line.split()[1]), "".join(said)
            said.append(line)
        return self.process.wait(), "".join(said)

    def end(self) -> None:
        """Ends the shell, and what it has started in the background."""
        assert self.process.stdin
        self.process.stdin.write("kill $(jobs -p) 2>/dev/null; wait; ip -all netns delete\n")
        self.process.stdin.close()
        self.process.wait(timeout=60)


def run_page(page: str, checkout: Path, folder: Path, path: str, with_builds: bool, used: set[int]) -> int:
    """Runs a page's steps in a folder; returns how many failed."""
    shell, failures = Shell(folder, path), 0
    for step in steps_of(page, (checkout / page).read_text(encoding="utf-8")):
        if step.file:
            with (folder / step.file).open("a" if step.appends else "w", encoding="utf-8") as file:
                file.write(step.text)
            continue
        skips = [n for n, (on, what, _) in enumerate(SKIPPED) if on == page and re.fullmatch(what, step.text, re.DOTALL)]
        if skips:
            used.update(skips)
            print(f"{page}:{step.line}: not run: {SKIPPED[skips[0]][2]}: {step.text.splitlines()[0]}")
            continue
        if not with_builds and (BUILDS.search(step.text) or step.text.endswith("END") and step.text.startswith("cat > src/")):
            print(f"{page}:{step.line}: not run: builds: {step.text.splitlines()[0]}")
            continue
        if not with_builds:
            step.text = re.sub(r"export PATH=\$PWD/target/\w+:\$PATH", "true", step.text)
        status, said = shell.run(step.text)
        if status == 0 and "new-nf" in step.text:
            # What it prints is to be run next, too; the shell stays where it is.
            following = said.partition("Next:\n")[2]
            status, more = shell.run(f"( set -e\n{following}\n)")
            said += more
        print(f"{page}:{step.line}: {'ok' if status == 0 else 'FAILED'}: {step.text.splitlines()[0]}")
        if status != 0:
            failures += 1
            print(f"{step.text}\nstatus {status}:\n{said}")
    shell.end()
    return failures


def prepare(folder: Path, checkout: Path) -> None:
    """Puts what the text takes for granted into a folder."""
    packets = [0xA1B2C3D4, 0x00040002, 0, 0, 65535, 1, 0, 0, 100, 100]
    (folder / "in.pcap").write_bytes(b"".join(word.to_bytes(4, "little") for word in packets) + bytes(100))
    first = re.search(r"<<'END'\n(.*?)\nEND\n", (checkout / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert first, "the README has no quick start"
    for n, name in enumerate(("changed.toml", "new.toml")):
        (folder / name).write_text(first[1].replace("no-telnet", f"no-telnet-{n}") + "\n", encoding="utf-8")


def inside(checkout: Path, programs: Path | None) -> int:
    """Runs all pages, in namespaces that nobody else has."""
    for script in (
        "mount -t sysfs sysfs /sys",
        "mkdir -p /run/netvm /run/netns && mount -t tmpfs -o mode=0755 tmpfs /run/netvm && mount -t tmpfs -o mode=0755 tmpfs /run/netns",
        "ip link set lo up",
    ):
        subprocess.run(["sh", "-c", script], check=True)
    failures, used = 0, set[int]()
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    with tempfile.TemporaryDirectory() as temporary:
        folder = checkout
        if programs:
            # Commands make files: beside links to what the checkout has.
            folder, path = Path(temporary), f"{programs}:{path}"
            # NFs run as another user.
            folder.chmod(0o755)
            for one in checkout.iterdir():
                (folder / one.name).symlink_to(one)
            os.environ["NETVM_BIN"] = str(programs)
        prepare(folder, checkout)
        for page in PAGES:
            failures += run_page(page, checkout, folder, path, programs is None, used)
    for n, (page, what, _) in enumerate(SKIPPED):
        if n not in used:
            failures += 1
            print(f"{page} has no command `{what}`: remove it from SKIPPED in tools/test/readme.py")
    print(f"{failures} failed")
    return 1 if failures else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run the commands of the README and the tutorials.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--programs", type=Path, help="leave builds out, take the programs of this folder")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return inside(args.checkout.resolve(), args.programs.resolve() if args.programs else None)
    if os.geteuid() != 0:
        print("SKIP: the README's commands take root, for network namespaces")
        return 0
    space = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.run([*space, sys.executable, *sys.argv, "--inside"], check=False, timeout=TIMEOUT).returncode


if __name__ == "__main__":
    sys.exit(main())
