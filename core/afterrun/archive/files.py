"""Files of exports: compressed where their name says so, replaced as a whole, read line by line with a bound."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

from afterrun.errors import InputError

LONGEST_LINE: Final = 256 * 1024 * 1024
"""Bytes. The longest memory that Afterrun takes has less, with its chunks and vectors and every character escaped."""
_GZIP: Final = b"\x1f\x8b"
_LEVEL: Final = 6


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a file: its number, counted from 1, what its `record` says it is, and the whole object."""

    number: int
    kind: str
    values: dict[str, Any]
    size: int


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path` when the block ends well; before, `path` is as it was.

    It is compressed where its name ends in `.gz`, and only its owner may read it. Raises InputError where it cannot be
    written.
    """
    try:
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=_LEVEL, filename="") as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        Path(draft).replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):
            Path(draft).unlink()


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read. Raises InputError where it cannot be opened."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        yield file


def lines(stream: BinaryIO) -> Iterator[Line]:
    """The lines of a stream, unpacked where it is compressed; blank ones are left out.

    Raises:
        InputError: a line is no object of JSON with a `record`, is too long, or the compressed stream is broken; the
            message names the line.
    """
    for number, text in enumerate(_texts(stream), start=1):
        if text.strip():
            yield _parsed(number, text)


def _texts(stream: BinaryIO) -> Iterator[bytes]:
    number = 0
    buffered = stream if isinstance(stream, BufferedReader) else BufferedReader(cast(Any, stream))
    source: IO[bytes] = buffered
    if buffered.peek(2)[:2] == _GZIP:
        source = cast(IO[bytes], gzip.GzipFile(fileobj=buffered))
    while True:
        number += 1
        try:
            text = source.readline(LONGEST_LINE + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"line {number} cannot be read: the file is cut or broken ({error})") from error
        if not text:
            return
        if len(text) > LONGEST_LINE:
            raise InputError(f"line {number} has more than {LONGEST_LINE:,} bytes: this is no export of Afterrun")
        yield text


def _parsed(number: int, text: bytes) -> Line:
    try:
        values = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        cut = "" if text.endswith(b"\n") else ", and the file ends in it: it was cut"
        raise InputError(f"line {number} is no JSON{cut}") from error
    kind = values.get("record") if isinstance(values, dict) else None
    if not isinstance(kind, str):
        raise InputError(f"line {number} is no record: every line of an export is an object with `record`")
    return Line(number=number, kind=kind, values=values, size=len(text))
