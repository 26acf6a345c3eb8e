"""What may be concluded of one line: its timing, unless outputs or gates forbid to compare."""

from collections.abc import Sequence

NOT_COMPARABLE = "not comparable"


def verdict(timing: str, passes: bool, fired: Sequence[str]) -> str:
    """`timing` where the outputs pass and no gate fired, else what stands against it."""
    if not passes:
        return NOT_COMPARABLE
    return f"suspect: {', '.join(fired)}" if fired else timing
