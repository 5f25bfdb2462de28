"""An append-only log: frames with length and checksum, on disk before ``append`` returns.

A frame is a mark, the length and CRC-32 of its payload, and the payload: one line of JSON and then raw bytes.
Whatever byte a killed process got to, all frames before it are whole; what follows the last whole frame is ignored by
``scan`` and cut off by whoever goes on writing.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrain.support.errors import FileError

_MARK = b"\x93FTR"
_HEAD = struct.Struct("<4sQI")  # mark, length of the payload, its CRC-32


@dataclass(frozen=True)
class Frame:
    """What one frame says (``entry``), the raw bytes behind it, and where it stands in the file."""

    entry: dict[str, Any]
    body: bytes
    start: int
    stop: int


def frame(entry: dict[str, Any], body: bytes = b"") -> bytes:
    """The bytes of one frame; ``entry`` is anything JSON holds."""
    payload = json.dumps(entry, separators=(",", ":")).encode() + b"\n" + body
    return _HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload


def scan(data: bytes) -> Iterator[Frame]:
    """All whole frames in order; damage between them is passed over, so look at ``start`` and ``stop`` for gaps."""
    position = 0
    while (position := data.find(_MARK, position)) >= 0:
        found = _frame_at(data, position)
        if found is not None:
            yield found
        position = position + 1 if found is None else found.stop


def read_frames(path: Path, what: str, newest: int) -> list[Frame] | None:
    """All whole frames of the log of ``what``, in a format up to the newest known; None if there is no log."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FileError(
            f"{path} cannot be read ({error.strerror or error}): choose another folder."
        ) from error
    frames = list(scan(data))
    if not frames or frames[0].start or frames[0].entry.get("kind") != "header":
        raise FileError(
            f"{path} is not the log of {what}, or its beginning is damaged: choose another folder."
        )
    if frames[0].entry["format"] > newest:
        raise FileError(f"{path} was written by a newer foretrain: update this one.")
    return frames


def damage(frames: list[Frame]) -> int:
    """Bytes between whole frames that belong to none: more than a torn end, which a kill explains."""
    expected, lost = 0, 0
    for item in frames:
        lost += item.start - expected
        expected = item.stop
    return lost


def _frame_at(data: bytes, start: int) -> Frame | None:
    if start + _HEAD.size > len(data):
        return None
    _, length, checksum = _HEAD.unpack_from(data, start)
    begin, stop = start + _HEAD.size, start + _HEAD.size + length
    if stop > len(data):
        return None
    payload = data[begin:stop]
    if zlib.crc32(payload) != checksum:
        return None
    line, _, body = payload.partition(b"\n")
    return Frame(json.loads(line), body, start, stop)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """A system may write less than it was given."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class Log:
    """A log open for appending; bytes behind ``end`` are cut off."""

    def __init__(self, path: Path, end: int) -> None:
        self.path = path
        self._end = end
        # No buffer of Python's own: a forked child must not write it a second time.
        self._descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
        os.ftruncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)

    def append(self, data: bytes) -> None:
        """Write and wait until it is on disk; if that fails nothing of it remains."""
        before = self._end
        self.write(data)
        try:
            self.sync()
        except FileError:
            self._take_back(before)
            raise

    def write(self, data: bytes) -> None:
        """Hand it to the system, so that the end of this process cannot harm it; if that fails nothing remains."""
        try:
            write_all(self._descriptor, data)
        except OSError as error:
            self._take_back(self._end)
            raise self._failure(error) from error
        self._end += len(data)

    def sync(self) -> None:
        """Wait until all that was written is on disk, so that the end of the machine cannot harm it."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _failure(self, error: OSError) -> FileError:
        return FileError(
            f"{self.path} could not be written ({error.strerror or error}): make room on its disk."
        )

    def _take_back(self, end: int) -> None:
        self._end = end
        try:
            os.ftruncate(self._descriptor, end)
            os.lseek(self._descriptor, end, os.SEEK_SET)
        except OSError:  # then the next reader ignores the torn frame
            return
