"""A sample that is small, keeps each family's share, and is the same whenever it is drawn again."""

import hashlib
from collections.abc import Callable, Sequence

from specbench import UserError
from specbench.words import count
from specbench.workload.case import Entry


def sample(entries: Sequence[Entry], size: int, seed: int, *, by_family: bool) -> list[Entry]:
    """`size` entries in file order, each stratum with its share of them and with one at least.

    Which entries are drawn depends on their ids and the seed alone, not on their order in the file.
    Raises UserError where there are fewer entries than that, or more families than places.
    """
    if size > len(entries):
        raise UserError(f"-n {size} is more than the {count(len(entries), 'case')} of the file: lower it")
    strata: dict[str, list[int]] = {}
    for place, entry in enumerate(entries):
        strata.setdefault(entry.case.family if by_family else "", []).append(place)
    if size < len(strata):
        raise UserError(f"-n {size} is less than the {len(strata)} families: raise it, or give --by none")
    chosen: list[int] = []
    sizes = shares([len(places) for places in strata.values()], size)
    for places, quota in zip(strata.values(), sizes, strict=True):
        chosen += sorted(places, key=_lot(entries, seed))[:quota]
    return [entries[place] for place in sorted(chosen)]


def shares(counts: Sequence[int], total: int) -> list[int]:
    """`total` places shared out in proportion to `counts`, one each at least: largest remainders.

    Needs len(counts) ≤ total ≤ sum(counts).
    """
    exact = [total * size / sum(counts) for size in counts]
    given = [max(int(share), 1) for share in exact]
    while sum(given) < total:
        neediest = max(range(len(counts)), key=lambda k: (given[k] < counts[k], exact[k] - given[k], -k))
        given[neediest] += 1
    while sum(given) > total:  # small families were given one that their share does not bring
        richest = max(range(len(counts)), key=lambda k: (given[k] > 1, given[k] - exact[k], -k))
        given[richest] -= 1
    return given


def _lot(entries: Sequence[Entry], seed: int) -> Callable[[int], bytes]:
    return lambda place: hashlib.sha256(f"{seed}\n{entries[place].case.id}".encode()).digest()
