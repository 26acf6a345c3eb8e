"""What is odd about answers that are ok, as sentences: each names how many, one case, and what it means."""

from dataclasses import dataclass

from specbench.record.format import Request


@dataclass
class _Notice:
    """How often one thing was seen, and the words for its first time."""

    number: int = 0
    example: str = ""

    def add(self, example: str) -> None:
        self.number += 1
        self.example = self.example or example


class Notices:
    """Looks at one ok answer after the other."""

    def __init__(self) -> None:
        self._answers = 0
        self._without_text, self._other_usage, self._at_once = _Notice(), _Notice(), _Notice()

    def add(self, request: Request) -> None:
        """Take one answer that is ok."""
        self._answers += 1
        tokens, token_ids = request.completion_tokens or 0, request.token_ids
        if not request.text and tokens > 1:
            self._without_text.add(f"{request.case} with {tokens} tokens")
        if token_ids is not None and len(token_ids) != tokens:
            self._other_usage.add(f"{request.case}, where usage counts {tokens} tokens and {len(token_ids)} ids came")
        elif request.chunks > tokens:
            self._other_usage.add(f"{request.case}, where usage counts {tokens} tokens and {request.chunks} texts came")
        if request.came_at_once:
            self._at_once.add(request.case)

    def sentences(self) -> list[str]:
        """What was seen."""
        sentences = [
            (
                self._without_text,
                "show no text for the tokens that usage counts (such as {}), so they have no TTFT and no TPOT",
            ),
            (self._other_usage, "have a usage that contradicts what came (such as {})"),
            (
                self._at_once,
                "came in one piece (such as {}): something between server and client holds streams back, so TTFT is as "
                "long as E2EL and TPOT is unknown",
            ),
        ]
        return [
            f"{notice.number} of {self._answers} answers {sentence.format(notice.example)}"
            for notice, sentence in sentences
            if notice.number
        ]
