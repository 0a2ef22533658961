"""Counts replies to suites that are not scored as they were meant."""

from collections import Counter

from ...data.thinking import THINKING_MARKERS, Markers, other_markers
from ..answers.replies import after_thinking


class Replies:
    """
    Counts what a reader must know of replies before a figure of them is believed: how many were cut, and how many have thoughts
    that no library takes out.
    """

    def __init__(self) -> None:
        self.total = self.cut = 0
        self._others: list[Markers | None] = []

    def note(self, text: str, is_cut: bool) -> None:
        """Counts a reply. `text` has its special tokens, which may be markers of a thought."""
        self.total += 1
        self.cut += is_cut
        self._others.append(other_markers(after_thinking(text), THINKING_MARKERS))

    def warnings(self, suite: str, model: str) -> list[str]:
        """Returns what to say of the replies of a model to a suite."""
        of_all = f"of {self.total} replies of {model} to `{suite}`"
        found = []
        if self.cut:
            found.append(
                f"`suites`: {self.cut} {of_all} were cut at the task's limit of tokens, at the end of the model's context, "
                "or within a thought, by a stop sequence of the task. They are scored as they are. lm-evaluation-harness scores a thought that "
                "does not end, too. Turn thinking off if the template can (`chat_template_kwargs`), or allow more tokens (`max_completion_length`, for suites under Inspect)."
            )
        for (opening, closing), count in Counter(of for of in self._others if of is not None).items():
            found.append(
                f"`suites`: {count} {of_all} hold a thought between {opening} and {closing}, which is scored as a part of them: suites remove "
                "only thoughts between <think> and </think>. Turn thinking off if the template can (`chat_template_kwargs`)."
            )
        return found
