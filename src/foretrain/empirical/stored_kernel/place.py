"""Where a store goes: a name that can be used, a place that is free or may be replaced, and room on its disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from stat import S_IMODE

from foretrain.empirical.stored_kernel.folder import Folder
from foretrain.empirical.stored_kernel.grid import stored_bytes
from foretrain.empirical.stored_kernel.layout import Layout, is_stored_kernel
from foretrain.empirical.stored_kernel.skeleton import PARTS, create
from foretrain.support.atomic import restore
from foretrain.support.errors import FileError, ForetrainError, InputError
from foretrain.support.memory import human_bytes

_FREE_SHARE = 0.98  # of the free disk


def local_folder(store: str | Path) -> Path:
    """The folder that was named, without links: what is renamed into its place must be on the same disk."""
    if not isinstance(store, str | os.PathLike) or not str(store) or "\0" in str(store):
        raise InputError(f"`store=`{store!r} names no folder: give a path, such as `store='kernel.zarr'`.")
    if "://" in str(store):
        raise InputError(
            f"`store=`{str(store)!r} is a remote address: give a folder that this machine can write to."
        )
    try:
        path = Path(store).expanduser().absolute()
        path = path.resolve() if path.is_symlink() else path
        restore(path)
        # An empty folder may be used; the one that this process is in would be lost to it.
        free = path.is_dir() and not any(path.iterdir()) and not path.samefile(os.curdir)
        taken = path.exists() and not is_stored_kernel(path) and not free
    except (OSError, ValueError, RuntimeError) as error:  # names that the system does not take
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"`store=`{str(store)!r} cannot be used ({reason}): choose another name.") from error
    if taken:
        other = path.is_dir() and not any(path.glob(".z*"))  # and no Zarr group
        inside = f", such as {path / 'kernel.zarr'}" if other else ""
        raise FileError(f"{path} exists and is no stored kernel: choose another `store=`{inside}.")
    return path


def create_in_place(path: Path, layout: Layout) -> None:
    """In the place of an older store, of an empty folder, or of nothing."""
    require_disk(path, layout, 0)
    try:
        if is_stored_kernel(path):
            _refuse_to_lose_files(path)
            with Folder(path).locked():
                create(path, layout, overwrite=True)
        elif path.exists():
            mode = path.stat().st_mode
            _give_way(path)
            create(path, layout)
            path.chmod(S_IMODE(mode))
        else:
            create(path, layout)
    except ForetrainError:
        raise
    except OSError as error:
        raise FileError(
            f"{path} could not be written ({error.strerror or error}): choose another `store=`."
        ) from error


def _refuse_to_lose_files(path: Path) -> None:
    """Only what a store consists of is replaced; hidden files are the system's."""
    foreign = [
        file.name for file in path.iterdir() if file.name not in PARTS and not file.name.startswith(".")
    ]
    if foreign:
        raise FileError(
            f"{path} also holds {', '.join(sorted(foreign)[:3])}, which would be lost with the store: move that "
            "somewhere else, or choose another `store=`."
        )


def _give_way(path: Path) -> None:
    """A folder that another run has filled meanwhile stays."""
    try:
        path.rmdir()
    except OSError as error:
        raise FileError(
            f"{path} cannot be replaced ({error.strerror or error}): choose a folder inside it as `store=`, such as "
            f"{path / 'kernel.zarr'}."
        ) from error


def require_disk(path: Path, layout: Layout, finished: int) -> None:
    """Refuse what will not fit before hours are spent on it."""
    grid = layout.grid
    needed = stored_bytes(grid, layout.entry_bytes) * (1 - finished / len(grid.tiles))
    existing = next(folder for folder in [path, *path.parents] if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > _FREE_SHARE * free:
        raise FileError(
            f"the kernel of {grid.samples[0]} x {grid.samples[1]} samples needs {human_bytes(needed)} of "
            f"disk, but {existing} has {human_bytes(free)} free: make room, choose another `store=`, or ask "
            "for `outputs='trace'|--trace`, fewer samples or a model in float32."
        )
