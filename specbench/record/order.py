"""The order in which deployments of both sides were measured, and what it protects from.

Each deployment is one letter, number or word that names its side, in order of time.
"""

from collections.abc import Hashable, Sequence
from itertools import pairwise

Pair = tuple[Hashable, Hashable]


def pairs_of(order: Sequence[Hashable]) -> list[Pair] | None:
    """The deployments two by two, when each two are one of each side, as in BN NB; None when they are not."""
    pairs = [(first, second) for first, second in zip(order[0::2], order[1::2], strict=False)]
    paired = len(order) % 2 == 0 and len(pairs) > 0 and all(first != second for first, second in pairs)
    return pairs if paired and len(set(order)) == 2 else None


def alternates(order: Sequence[Hashable]) -> bool:
    """Whether each pair is the reverse of the one before, as in BN, BNNB and BNNBBN.

    Then each side comes first as often as it can, and a device that drifts (warmer, busier) favours neither.
    """
    pairs = pairs_of(order)
    return pairs is not None and all(one != other for one, other in pairwise(pairs))
