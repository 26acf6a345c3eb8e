"""What every script shares with its terminal, tried on a small script of its own."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import HANG_S, ROOT

from specbench import UserError, path_argument
from specbench.files import check_writable, write_atomically, write_output

SCRIPT = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from specbench import terminal
from specbench.files import write_atomically

def main():
    for number in range(int(sys.argv[2])):
        print("a line – with a dash", number, flush=number % 2 == 0)
    terminal.say("a word")
    write_atomically(Path(sys.argv[1]), b"results")
    if "wait" in sys.argv:
        print("waiting", flush=True)
        time.sleep({HANG_S})
    return 7

raise SystemExit(terminal.run("script.py", main))
"""


def shell(tmp_path: Path, line: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """`line` in bash, where $S is the script and $R the file that it writes."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    env = {**os.environ, **variables, "S": f"{sys.executable} {script}", "R": str(tmp_path / "results")}
    return subprocess.run(["bash", "-c", line], capture_output=True, timeout=HANG_S, env=env, check=False)


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("$S $R 10000 2>&1 | head -1; exit ${PIPESTATUS[0]}", {}),
        ("$S $R 1 2>&1 | true; exit ${PIPESTATUS[0]}", {}),
        ("$S $R 5 >&-", {}),
        ("$S $R 5 >&- 2>&-", {}),
        ("$S $R 5 <&- >&- 2>&-", {}),
        ("$S $R 5 2>/dev/full", {}),
        ("$S $R 5 >/dev/full", {}),
        ("$S $R 10000 >/dev/full 2>&1", {}),
        ("$S $R 5", {"PYTHONIOENCODING": "ascii"}),
        ("$S $R 5", {"PYTHONIOENCODING": "latin-1"}),
        ("$S $R 5", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        ("$S $R 5", {"PYTHONUNBUFFERED": "1"}),
    ],
)
def test_a_terminal_that_is_gone_loses_neither_files_nor_the_exit_code(
    tmp_path: Path, line: str, variables: dict[str, str]
) -> None:
    done = shell(tmp_path, line, **variables)
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "results").read_bytes() == b"results"
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr, done.stderr


def test_a_full_device_is_said_and_a_character_that_stdout_cannot_carry_is_replaced(tmp_path: Path) -> None:
    assert shell(tmp_path, "$S $R 1 >/dev/full").stderr.endswith(
        b"script.py: what it printed is lost: No space left on device\n"
    )
    assert shell(tmp_path, "$S $R 1", PYTHONIOENCODING="ascii").stdout == b"a line ? with a dash 0\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_signal_is_one_sentence(tmp_path: Path, number: signal.Signals) -> None:
    assert _signalled(tmp_path, [], number) == (130, b"a word\nscript.py: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_was_ignored_stays_ignored(tmp_path: Path, number: signal.Signals) -> None:
    ignoring = ["bash", "-c", f"trap '' {number.name}; exec \"$@\"", "bash"]
    code, stderr = _signalled(tmp_path, ignoring, number, signal.SIGKILL)
    assert (code, stderr) == (-signal.SIGKILL, b"a word\n")


def _signalled(tmp_path: Path, wrapper: list[str], *numbers: signal.Signals) -> tuple[int, bytes]:
    """Exit code and stderr of the script when it waits and gets these signals, in this order."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    argv = [*wrapper, sys.executable, str(script), str(tmp_path / "results"), "0", "wait"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"waiting\n"
    for number in numbers:
        process.send_signal(number)
    _, stderr = process.communicate(timeout=HANG_S)
    return process.returncode, stderr


# ---- output options


def test_a_device_or_a_pipe_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    write_atomically(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "read", "wb") as read:
        reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=read)
    write_atomically(tmp_path / "pipe", b"content" * 100_000)
    reader.wait(HANG_S)
    assert (tmp_path / "read").read_bytes() == b"content" * 100_000 and (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "read"]


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("$S /dev/stdout 1", b"a line \xe2\x80\x93 with a dash 0\nresults"),
        ("$S /dev/stdout 1 | cat", b"a line \xe2\x80\x93 with a dash 0\nresults"),
        ("$S /dev/stdout 1 > $R; cat $R", b"a line \xe2\x80\x93 with a dash 0\nresults"),
        ("$S /proc/self/fd/1 1", b"a line \xe2\x80\x93 with a dash 0\nresults"),
        ("$S /dev/stderr 0 2>&1", b"a word\nresults"),
        ("$S >(cat > $R; echo done >> $R) 0 2>/dev/null; while ! grep -q done $R; do sleep 0.05; done; cat $R",
         b"resultsdone\n"),
    ],
)  # fmt: skip
def test_the_standard_streams_can_be_named_as_files(tmp_path: Path, line: str, printed: bytes) -> None:
    done = shell(tmp_path, line, PYTHONIOENCODING="utf-8")
    assert done.stdout == printed, done.stderr
    for name in ("/dev/stdout", "/dev/stderr"):
        assert os.path.islink(name)


def test_a_link_keeps_pointing_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text("old")
    (tmp_path / "link.json").symlink_to("file.json")
    write_atomically(tmp_path / "link.json", b"new")
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "file.json").read_bytes() == b"new"


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write /dev/full: No space left on device; name another file with"):
        write_output(Path("/dev/full"), b"x", "--json")
    with pytest.raises(UserError, match=r"--json \. is a folder: name a file"):
        check_writable(Path(), "--json")
    with pytest.raises(UserError, match="does not exist; name another"):
        check_writable(tmp_path / "none" / "a.json", "--json")
    with pytest.raises(UserError, match="File name too long"):
        check_writable(tmp_path / ("x" * 300), "--json")
    with pytest.raises(Exception, match="the name is empty"):
        path_argument(" ")
    for device in ("/dev/null", "/dev/stdout", "/dev/full"):
        check_writable(Path(device), "--json")


def test_no_file_of_lines_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("{}\n")
    (tmp_path / "page.html").symlink_to("prompts.jsonl")
    for name in ("prompts.jsonl", "page.html"):
        with pytest.raises(UserError, match="holds prompts or requests"):
            check_writable(tmp_path / name, "--out")
    check_writable(tmp_path / "new.jsonl", "--out")
