"""What a script shares with its terminal: output that may be lost, and the signals that end it.

    if __name__ == "__main__":
        raise SystemExit(terminal.run("compare.py", main))

`run` makes four things true of a script:

- Printing never fails. A reader that is gone (`| head`), a closed stdout, a full device, or an encoding without the
  character loses what was printed and nothing else: files are written and the exit code stays what it is.
- Ctrl-\\ and a closed terminal (SIGHUP) end it as Ctrl-C does: with KeyboardInterrupt, so that it can tidy up.
- A signal that was ignored when the script started, as SIGHUP is under nohup, stays ignored.
- An interruption is one sentence and exit code 130. A script that imports its large parts inside `main` is covered
  from its first moment on.

Standard library only.
"""

import errno
import io
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

from specbench.words import printable

INTERRUPTED = 130
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


def run(program: str, main: Callable[[], int]) -> int:
    """Call `main` as the script `program`, whose exit code this returns. Changes this process: for scripts alone."""
    _open_standard_streams()
    for number in (signal.SIGQUIT, signal.SIGHUP):
        if number in ending_signals():
            signal.signal(number, signal.default_int_handler)
    try:
        code = main()
    except KeyboardInterrupt:
        say(f"{program}: interrupted")
        code = INTERRUPTED
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)  # all is done, and Python's own end would meet one with a traceback
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Forgiving) and raw.error is not None and raw.error.errno != errno.EPIPE:
        say(f"{program}: what it printed is lost: {raw.error.strerror}")
    return code


def ending_signals() -> list[signal.Signals]:
    """The signals that end a script, without those that whoever started it had ignored."""
    return [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def say(text: str) -> None:
    """Print a line for people, away from the results on stdout."""
    print(printable(text), file=sys.stderr, flush=True)


class _Forgiving(io.FileIO):
    """A file that takes everything: what cannot be written is lost, and `error` tells why."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            while (written := super().write(data)) is None:  # a terminal that others made non-blocking is busy
                select.select([], [self], [])
            return written
        except OSError as error:
            self.error = error
            return len(data)


def _open_standard_streams() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # it was closed, and the next file that is opened would take its place
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _forgiving(sys.stdout, 1, "replace")
    sys.stderr = _forgiving(sys.stderr, 2, "backslashreplace")


def _forgiving(stream: TextIO | None, descriptor: int, errors: str) -> TextIO:
    raw = _Forgiving(descriptor, "w", closefd=False)
    encoding = stream.encoding if stream is not None else "utf-8"
    by_line = descriptor == 2 or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=by_line)
