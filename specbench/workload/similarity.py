"""Which cases say nearly the same: near-duplicates among many prompts, in one pass and little memory.

Two prompts are near-duplicates where at least `NEAR` of all their pieces of 8 bytes are common to both (Jaccard
similarity), letters in one case and blanks left out; system messages do not count, for a service's prompts share them.
Pairs are found by MinHash signatures (Broder 1997) made in one permutation (Li, Owen and Zhang 2012) and by banding: of
pairs at the bound 99.98% share a band. Where a signature cannot decide, the pieces themselves are compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specbench.workload.case import Case

NEAR = 0.8
_WIDTH = 8  # bytes of a piece: they are one 64-bit number
_BINS, _ROWS = 64, 4  # 16 bands of 4 rows
_EMPTY = np.uint32(0xFFFFFFFF)
_BATCH = 1 << 18  # bytes looked at together
_DOUBT = 0.15  # three standard errors of a signature's estimate
_FOLD = bytes(range(256)).lower()
_BLANKS = b" \t\r\n"

Signatures = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Similar:
    """Positions of the cases that repeat an earlier one, each with that earlier one: exactly, or nearly."""

    duplicates: dict[int, int]
    near: dict[int, int]


def find_similar(cases: Sequence[Case]) -> Similar:
    """Duplicates (the same messages) and near-duplicates of earlier cases."""
    first: dict[tuple[str, ...], int] = {}
    duplicates: dict[int, int] = {}
    distinct: list[int] = []
    for position, case in enumerate(cases):
        asked = tuple(text for message in case.messages for text in message.values())
        earlier = first.setdefault(asked, position)
        if earlier == position:
            distinct.append(position)
        else:
            duplicates[position] = earlier
    near = _near([cases[position] for position in distinct])
    return Similar(duplicates, {distinct[later]: distinct[earlier] for later, earlier in near.items()})


def jaccard(one: bytes, other: bytes) -> float:
    """The share of pieces that two folded texts have in common."""
    pieces, others = np.unique(_pieces(one)), np.unique(_pieces(other))
    common = len(np.intersect1d(pieces, others, assume_unique=True))
    return common / (len(pieces) + len(others) - common)


def folded(case: Case) -> bytes:
    """What is compared of a case, at least one piece long."""
    texts = [message["content"] for message in case.messages if message["role"] not in ("system", "developer")]
    return "\n".join(texts).encode().translate(_FOLD, _BLANKS).ljust(_WIDTH, b"\0")


def _near(cases: Sequence[Case]) -> dict[int, int]:
    if len(cases) < 2:
        return {}
    signatures = _signatures(cases)
    near: dict[int, int] = {}
    for later, earlier in _candidates(signatures).tolist():
        if later in near:
            continue
        likeness = float(np.mean(signatures[later] == signatures[earlier]))
        if abs(likeness - NEAR) < _DOUBT:
            likeness = jaccard(folded(cases[later]), folded(cases[earlier]))
        if likeness >= NEAR:
            near[later] = earlier
    return near


def _signatures(cases: Sequence[Case]) -> Signatures:
    """[cases, _BINS]: the least hash of each bin; a bin without one takes that of the next bin that has one."""
    signatures = np.full((len(cases), _BINS), _EMPTY)
    flat = signatures.reshape(-1)
    for text, rows, starts in _batches(cases):
        hashes = _hashed(_pieces(text))
        values = (hashes >> np.uint64(20)).astype(np.uint32)
        values[(starts[1:, None] - np.arange(1, _WIDTH)).ravel()] = _EMPTY  # pieces of two texts
        bins = np.repeat(rows * _BINS, np.diff(starts, append=len(text)))[: len(hashes)]
        bins += (hashes >> np.uint64(58)).view(np.int64)
        np.minimum.at(flat, bins, values)
    return _filled(signatures)


def _batches(cases: Sequence[Case]) -> Iterator[tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Joined texts of about _BATCH bytes, with the row that each part belongs to and where it starts."""
    parts: list[bytes] = []
    rows: list[int] = []
    size = 0
    for row, case in enumerate(cases):
        text = folded(case)
        for start in range(0, max(len(text) - _WIDTH + 1, 1), _BATCH):
            part = text[start : start + _BATCH + _WIDTH - 1]
            parts.append(part)
            rows.append(row)
            size += len(part)
            if size >= _BATCH:
                yield _joined(parts, rows)
                parts, rows, size = [], [], 0
    if parts:
        yield _joined(parts, rows)


def _joined(parts: list[bytes], rows: list[int]) -> tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    lengths = np.array([len(part) for part in parts])
    return b"".join(parts), np.array(rows), np.cumsum(lengths) - lengths


def _pieces(text: bytes) -> npt.NDArray[np.uint64]:
    """Every _WIDTH bytes of a text as a number, one for each place where they start."""
    count = len(text) - _WIDTH + 1
    pieces = np.empty(count, dtype=np.uint64)
    for offset in range(min(_WIDTH, count)):
        whole = (len(text) - offset) // _WIDTH
        pieces[offset::_WIDTH] = np.frombuffer(text, dtype="<u8", count=whole, offset=offset)
    return pieces


def _hashed(pieces: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Numbers whose every bit depends on the whole piece: the finisher of SplitMix64 (Steele et al. 2014)."""
    mixed = (pieces ^ (pieces >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return result


def _filled(signatures: Signatures) -> Signatures:
    """Signatures of short texts without empty bins (Shrivastava and Li 2014)."""
    short = np.flatnonzero((signatures == _EMPTY).any(axis=1))
    own = signatures[short]
    filled = own.copy()
    for step in range(1, _BINS):
        empty = filled == _EMPTY
        if not empty.any():
            break
        lent = np.roll(own, -step, axis=1)
        take = empty & (lent != _EMPTY)
        filled[take] = lent[take] + np.uint32(step)
    signatures[short] = filled
    return signatures


def _candidates(signatures: Signatures) -> npt.NDArray[np.int64]:
    """[pairs, 2]: each case with the first one of every band that they share, in order."""
    cases = len(signatures)
    pairs = []
    for start in range(0, _BINS, _ROWS):
        band = signatures[:, start : start + _ROWS].astype(np.uint64)
        key = band[:, 0]
        for column in range(1, _ROWS):
            key = _hashed(key) ^ band[:, column]
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        earlier = first[group.reshape(-1)]
        later = np.flatnonzero(earlier < np.arange(cases))
        pairs.append(later * cases + earlier[later])
    both = np.unique(np.concatenate(pairs))
    return np.stack([both // cases, both % cases], axis=1)
