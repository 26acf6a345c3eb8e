"""Server-sent events: from the blocks of a body to events, each with the block that completed it."""

from collections.abc import Iterator
from itertools import accumulate

# Kinds that no server can name, for what the specification would ignore and may yet be an error in the server's words.
UNFINISHED, STRAY = b"\nunfinished", b"\nstray"


def events(blocks: list[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """(index of the block that completed it, kind, data) of each event in a body.

    Follows the WHATWG specification's parsing of an event stream (lines end with CR, LF or CRLF; comments, unknown
    fields and a leading byte order mark are ignored; data lines are joined with LF). The body is put together first, so
    how it was cut into blocks cannot matter; an event is complete with the first byte of the blank line after it. The
    kind is what an `event` field says, else empty. Beyond the specification:

    - An `error` field is data of the kind `error` (llama.cpp's server writes its errors so).
    - A line that starts like JSON comes as an event of the kind STRAY, and what the body's end cut off as UNFINISHED.
    """
    body = b"".join(blocks)
    if b"\r" in body:
        blocks = list(_with_lf(blocks))
        body = b"".join(blocks)
    ends = list(accumulate(map(len, blocks)))
    block = 0
    position = 3 if body.startswith(b"\xef\xbb\xbf") else 0
    kind, data = b"", None
    *lines, rest = body[position:].split(b"\n")
    for line in lines:
        if not line:
            if data is not None:
                while ends[block] <= position:
                    block += 1
                yield block, kind, data
            kind, data = b"", None
        elif line.startswith(b"data:") or line == b"data":
            data = _joined(data, line[5:])
        elif line.startswith(b"event:"):
            kind = line[6:].strip()
        elif line.startswith(b"error:"):
            kind, data = b"error", _joined(data, line[6:])
        elif line.startswith(b"{"):
            yield block, STRAY, line
        position += len(line) + 1
    if rest.startswith((b"data:", b"error:")):
        name, _, value = rest.partition(b":")
        kind, data = name if name == b"error" else kind, _joined(data, value)
    elif rest.startswith(b"{"):
        yield block, STRAY, rest
    if data is not None:
        yield len(blocks) - 1, kind if kind == b"error" else UNFINISHED, data


def _joined(data: bytes | None, value: bytes) -> bytes:
    value = value.removeprefix(b" ")
    return value if data is None else data + b"\n" + value


def _with_lf(blocks: list[bytes]) -> Iterator[bytes]:
    """`blocks` with every line ending as one LF, in the block where its first byte was."""
    after_cr = False
    for block in blocks:
        rest = block[1:] if after_cr and block.startswith(b"\n") else block
        after_cr = block.endswith(b"\r") if block else after_cr
        yield rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
