"""The order in which deployments of both sides were measured, and what it protects from."""

from collections.abc import Hashable, Sequence
from itertools import pairwise


def alternates(order: Sequence[Hashable]) -> bool:
    """Whether deployments came in pairs of both sides, each pair the reverse of the one before: BN, BNNB, BNNBBN.

    Then each side comes first as often as it can, and a device that drifts (warmer, busier) favours neither. `order`
    names the side of each deployment, in order of time.
    """
    pairs = [tuple(order[first : first + 2]) for first in range(0, len(order), 2)]
    whole = len(set(order)) == 2 and all(len(set(pair)) == 2 for pair in pairs)
    return whole and all(one != other for one, other in pairwise(pairs))
