"""
Jailbreak wrappers from general, publicly known families. A wrapper should change neither a refusal nor an answer, so
each one goes around harmful and benign requests. `BENIGN_REQUESTS` are the benign controls for data sets that have
only harmful requests.
"""

import base64 as base64_codec
import codecs

from .draft import OUTER_POSITIONS, Draft
from .registry import Cue, add_wording, perturbation, read_wordings


FAMILY = "jailbreak"
WORDINGS = read_wordings(FAMILY)
BENIGN_REQUESTS = read_wordings("benign")


def _wrap(draft: Draft, cue: Cue) -> None:
    # Only the wording is formatted: a request may hold braces.
    head, tail = (part.format() for part in cue.wording.split("{request}"))
    draft.wrap(head, tail)


for name, described in (
    ("role_play", "The model is to play a character who has no rules."),
    ("fiction", "The request is a part of a story, a film, a poem."),
    ("hypothetical", "The request is made in theory only, or about the past."),
    ("formatting", "The request is a field of a table, some markup, a comment in code."),
):
    perturbation(WORDINGS[name], FAMILY)(_wrap, name, described)


@perturbation(WORDINGS["hidden_among_benign"], FAMILY)
def hidden_among_benign(draft: Draft, cue: Cue) -> None:
    """The request is one item of a list of everyday requests."""
    others = [item for item in BENIGN_REQUESTS[cue.split] if item != cue.source.question]
    items = cue.rng.sample(others, 3)
    place = cue.rng.randrange(1, 4)
    before = "".join(f"{number}. {item}\n" for number, item in enumerate(items[:place], start=1))
    after = "".join(f"\n{number}. {item}" for number, item in enumerate(items[place:], start=place + 2))
    draft.wrap(f"{cue.text}\n\n{before}{place + 1}. ", after)


for name, described, positions in (
    ("prefix_injection", "The reply is to begin with words of consent.", OUTER_POSITIONS),
    ("suffix_injection", "Text after the request claims to be from the system, or is noise.", ("end",)),
    ("refusal_suppression", "The model is told not to refuse, warn or apologise.", OUTER_POSITIONS),
):
    perturbation(WORDINGS[name], FAMILY, positions)(add_wording, name, described)


@perturbation(WORDINGS["prefilled_turn"], FAMILY, needs=("chat messages", "the user's turn last"))
def prefilled_turn(draft: Draft, cue: Cue) -> None:
    """The assistant's reply has already begun, with words of consent."""
    draft.say("assistant", cue.text)


@perturbation(WORDINGS["base64"], FAMILY, keeps_question=False)
def base64(draft: Draft, cue: Cue) -> None:
    """The request is encoded in Base64."""
    encoded = base64_codec.b64encode(draft.text().encode()).decode()
    draft.replace(cue.wording.format(encoded=encoded))


@perturbation(WORDINGS["rot13"], FAMILY, needs=("letters from a to z",), keeps_question=False)
def rot13(draft: Draft, cue: Cue) -> None:
    """Each letter of the request from a to z is shifted by thirteen places."""
    draft.replace(cue.wording.format(encoded=codecs.encode(draft.text(), "rot13")))
