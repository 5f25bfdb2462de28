"""Peers of the benchmarks, each in an environment of its own: `python -m bench.peers [NAME ...]`.

A peer is one entry of `ENVIRONMENTS`. A stamp says that an environment is complete and for which entry, so
a second run does nothing, and a changed entry or Python builds it anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

from foretrain.support.errors import FileError, ForetrainError, NotSupportedError, unknown_name

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".bench"
STAND_INS = ROOT / "bench" / "peer_side" / "stand_ins.py"


@dataclass(frozen=True)
class Environment:
    """What to install for a peer, and which module of `bench.peer_side` speaks for it."""

    name: str
    server: str
    check: str
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    oldest_python: tuple[int, int] = (3, 11)
    newest_python: tuple[int, int] = (3, 14)
    folder_variable: str = ""  # of a peer on no package index: it names the folder that has its code
    source: str = ""  # where its user gets that from

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> str:
        parts = [json.dumps(asdict(self), sort_keys=True), STAND_INS.read_text(), sys.version]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def remedy(self) -> str:
        """What to do where it is not ready."""
        if self.folder_variable and not os.environ.get(self.folder_variable):
            return (
                f"it is on no package index: set {self.folder_variable} to a copy of {self.source} and run "
                "make bench-env"
            )
        return "run make bench-env"

    @property
    def ready(self) -> bool:
        """Whether the environment is complete and belongs to this entry, and code from elsewhere is there."""
        stamp = self.folder / "stamp"
        if self.folder_variable and not os.environ.get(self.folder_variable):
            return False
        return self.python.exists() and stamp.exists() and stamp.read_text() == self.stamp


@dataclass(frozen=True)
class OwnEnvironment(Environment):
    """A peer that the package's own environment has; it only gets a process of its own."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)

    @property
    def ready(self) -> bool:
        return True


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(
            name="neural-tangents",
            server="bench.peer_side.neural_tangents_calls",
            check="import neural_tangents; print('neural-tangents', neural_tangents.__version__)",
            requirements=(
                "jax==0.4.25",
                "jaxlib==0.4.25",
                "numpy<2",
                "scipy<1.13",
                "frozendict",
                "absl-py",
                "flatbuffers",
            ),
            without_dependencies=("neural-tangents==0.6.5",),
            stand_ins=("tensorflow", "tf2jax", "jax.experimental.jax2tf"),
            newest_python=(3, 12),
        ),
        Environment(
            name="nngeometry",
            server="bench.peer_side.nngeometry_calls",
            check="import nngeometry, importlib.metadata as m; print('NNGeometry', m.version('nngeometry'))",
            requirements=("torch==2.13.0", "numpy>=2.0"),
            without_dependencies=("nngeometry==0.4",),
        ),
        Environment(
            name="kpflow",
            server="bench.peer_side.kpflow_calls",
            check="import bench.peer_side.kpflow_calls; print('kpflow, from the folder that KPFLOW names')",
            requirements=("torch==2.13.0", "numpy>=2.0", "scipy", "matplotlib"),
            folder_variable="KPFLOW",
            source="github.com/meeree/kpflow",
        ),
        OwnEnvironment(
            name="torch.func",
            server="bench.peer_side.torch_func_calls",
            check="import torch.func",
            requirements=("torch==2.13.0",),
        ),
    )
}


def environment(name: str) -> Environment:
    """The entry of that name."""
    if name not in ENVIRONMENTS:
        raise unknown_name("peer", name, ENVIRONMENTS)
    return ENVIRONMENTS[name]


def build(peer: Environment) -> None:
    """Make the environment from nothing, check that the peer imports in it, then stamp it."""
    if not peer.oldest_python <= sys.version_info[:2] <= peer.newest_python:
        versions = " to ".join(".".join(map(str, v)) for v in (peer.oldest_python, peer.newest_python))
        raise NotSupportedError(
            f"{peer.name} needs Python {versions} and this is {sys.version.split()[0]}: "
            "run with another PYTHON, or run the benchmarks without this peer."
        )
    shutil.rmtree(peer.folder, ignore_errors=True)
    venv.create(peer.folder, with_pip=True, symlinks=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(peer, [*install, *peer.requirements])
    if peer.without_dependencies:
        _run(peer, [*install, "--no-deps", *peer.without_dependencies])
    if peer.stand_ins:
        _write_stand_ins(peer)
    print(_run(peer, ["-c", peer.check]).strip())
    (peer.folder / "stamp").write_text(peer.stamp)


def _write_stand_ins(peer: Environment) -> None:
    """A .pth file makes every Python of the environment start with the empty modules in place."""
    packages = Path(_run(peer, ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    shutil.copy(STAND_INS, packages / "bench_stand_ins.py")
    (packages / "bench_stand_ins.txt").write_text("\n".join(peer.stand_ins) + "\n")
    (packages / "bench_stand_ins.pth").write_text("import bench_stand_ins\n")


def _run(peer: Environment, arguments: list[str]) -> str:
    done = subprocess.run(
        [str(peer.python), *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise FileError(
            f"the environment of {peer.name} could not be made, because "
            f"{' '.join(arguments)!r} failed there; repair what it says and run make bench-env again:\n{last}"
        )
    return done.stdout


def main() -> int:
    """Build what is missing or out of date."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description="Prepare the environments of the benchmarks' peers."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="peers to prepare; all if none is named")
    try:
        for peer in map(environment, parser.parse_args().names or list(ENVIRONMENTS)):
            if peer.ready:
                print(f"{peer.name}: ready")
                continue
            if peer.folder_variable and not os.environ.get(peer.folder_variable):
                print(f"{peer.name}: left out, because {peer.remedy}")
                continue
            print(f"{peer.name}: building {peer.folder.relative_to(ROOT)} ...", flush=True)
            build(peer)
    except ForetrainError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
