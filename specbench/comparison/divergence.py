"""Where two outputs part."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from specbench.comparison.format import Divergence
from specbench.comparison.pairing import Pair
from specbench.comparison.sides import Ints, Run

_AROUND = 60  # characters of a continuation that are shown


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place where two outputs part: `index` (in tokens or characters, as given), what both share just
    before, and both continuations (empty when that side ended there)."""

    index: int
    before: Sequence[Hashable]
    base: Sequence[Hashable]
    candidate: Sequence[Hashable]


def first_divergence(base: Sequence[Hashable], candidate: Sequence[Hashable], around: int = 20) -> Parting | None:
    """Where two outputs (texts, or lists of token ids) part; None when they are equal."""
    length = min(len(base), len(candidate))
    index = next((i for i in range(length) if base[i] != candidate[i]), length)
    if index == len(base) == len(candidate):
        return None
    end = index + around
    return Parting(index, base[max(0, index - around) : index], base[index:end], candidate[index:end])


def output_counts(side: Iterable[Run], places: Ints) -> Counter[int]:
    """How often each output was given at these places."""
    return Counter(number for run in side for number in run.output[places].tolist())


def divergence(pair: Pair, places: Ints, compared: str) -> Divergence | None:
    """Where the base's commonest output and the candidate's commonest other one part; None if it gave no other,
    or if the outputs are not kept."""
    if pair.bases[0].manifest.no_text:
        return None  # digests tell that outputs differ, and not where
    base = output_counts(pair.bases, places).most_common(1)[0][0]
    ranked = output_counts(pair.candidates, places).most_common()
    other = next((number for number, _ in ranked if number != base), None)
    if other is None:
        return None
    texts = first_divergence(pair.outputs.text(base), pair.outputs.text(other), around=_AROUND)
    ids = None
    if compared == "token ids":
        ids = first_divergence(pair.outputs.token_ids(base), pair.outputs.token_ids(other))
    return Divergence(
        token=ids.index if ids else None,
        character=texts.index if texts else None,
        before="".join(map(str, texts.before)) if texts else None,
        base="".join(map(str, texts.base)) if texts else None,
        candidate="".join(map(str, texts.candidate)) if texts else None,
    )
