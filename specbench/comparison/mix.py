"""What a reader names before looking: the traffic that is intended, and the one line to conclude from."""

from collections.abc import Mapping, Sequence

from specbench import UserError
from specbench.words import some

_MOST_NAMED = 12


def parse_mix(text: str | None) -> dict[str, float] | None:
    """FAMILY=WEIGHT,… as {family: weight}; None for None.

    Raises UserError where a part is no such pair, a family stands twice, or the weights do not sum to 1.
    """
    if text is None:
        return None
    mix: dict[str, float] = {}
    for part in text.split(","):
        family, separator, weight = part.rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            value = -1.0
        if not separator or not family or not 0 <= value <= 1 or family in mix:
            raise UserError(f"--mix has {part!r}; write each family once as FAMILY=WEIGHT with a weight from 0 to 1")
        mix[family] = value
    if abs(sum(mix.values()) - 1) > 1e-6:
        raise UserError(f"the weights of --mix sum to {sum(mix.values()):g}; make them sum to 1")
    return mix


def check_families(mix: Mapping[str, float] | None, primary: str | None, families: Sequence[str]) -> None:
    """Raise UserError where --mix or --primary name a family that the prompts file lacks."""
    known = some(families, _MOST_NAMED)
    for family in mix or ():
        if family not in families:
            raise UserError(f"--mix names the family {family!r}, which the inventory lacks; it has {known}")
    if primary not in (None, "overall") and primary not in families:
        raise UserError(f"--primary is {primary!r}; name overall or one of {known}")
