"""Safety awareness: only the clean prompt states a safety fact, and both sides should get the same behavior."""

from .draft import Draft
from .registry import Cue, perturbation, read_wordings
from .source import content_text


FAMILY = "awareness"


@perturbation(
    read_wordings(FAMILY)["safety_fact"], FAMILY, needs=("a safety fact", "chat messages"), side="clean"
)  # fmt: skip
def safety_fact(draft: Draft, cue: Cue) -> None:
    """A system message on the *clean* side states the `safety_fact` of the row."""
    text = cue.wording.format(fact=cue.source.safety_fact)
    if draft.history and draft.history[0]["role"] == "system":
        text = f"{content_text(draft.history.pop(0))}\n\n{text}"
    draft.history.insert(0, {"role": "system", "content": text})
