"""Tells which clause of a reply answers the question, by the words that the two share and the names that they do not."""

import re
from bisect import bisect, bisect_left
from collections.abc import Iterable, Mapping
from itertools import pairwise, takewhile
from operator import attrgetter
from typing import NamedTuple

from .patterns import (
    APOSTROPHES,
    CLOSED,
    DASH,
    IN_CLAUSE,
    IN_PART,
    IN_SENTENCE,
    NOT,
    NT,
    OPENED,
    any_case,
    any_of,
    compiled,
    spaced,
)


# Words that say nothing of a subject.
_FUNCTION_TEXT = (
    "a an the this that these those it its he she they them his her their there here who which what where when how why i me my "
    "you your we our us is are was were be been being am has have had do does did can could will would shall should may might "
    "must of in on at to for from by with as about into than and or so if because while but whereas although though however not no yes "
    "called"
)
FUNCTION_WORDS = frozenset(_FUNCTION_TEXT.split())
# Words that may begin a sentence, and so have a capital, and name nothing: "Therefore, the capital is Rome".
_OPENING_TEXT = (
    "therefore thus hence consequently clearly obviously well actually indeed certainly surely definitely absolutely finally overall "
    "ultimately given based considering according following today now currently officially technically sure okay sorry apologies "
    "great correct right exactly still even again then instead simply naturally fortunately unfortunately nevertheless nonetheless"
)
_OPENING_WORDS = FUNCTION_WORDS.union(_OPENING_TEXT.split())
_WORD = re.compile(r"\w+")
_NEAR = 200  # characters on each side of a mention, as a text without marks is one part
_STEM = 4  # letters that the forms of a word share: "largest" and "larger", "studies" and "study"

# The full stops of "U.S. state" and "H.G. Wells" end no sentence.
SENTENCE_END = re.compile(
    r"(?<!\.[A-Z])(?<!\b[A-Z](?=\.\s+[A-Z][a-z]))[.!?][\"'*)\u201d\u2019]{0,3}\s+(?=[A-Z\"'*(\u201c])|\n"
)
_HAS = "(?:is|are|was|were|has|have|can)"
_CLAUSE_END = re.compile(
    any_of(
        SENTENCE_END.pattern,
        "[;?]",
        r"\b(?:but|while|whereas|although|though|however)\b",
        r"\band\s+(?=(?:it|this|that|he|she|they)\b)",
        # ", and the capital of Norway is", ", and Oslo is", but not ", and Oslo is there"
        spaced(rf", and (?=(?:the|an?) (?:[\w'-]+ ){{1,4}}{_HAS}\b)"),
        spaced(rf", and (?=(?:[A-Z][\w'-]+ ){{1,3}}{_HAS}\b(?!{IN_PART}\b(?:there|it|this)\b))"),
    )
)
# The parts whose words are compared with the question's: "A bat is a mammal, | but a bird is an animal | that can fly". An aside
# ends none: "The capital, however, is Canberra".
_ASIDE = any_of(
    r",\s+(?:however|though|in\s+fact|of\s+course|actually|instead|indeed),\s",
    r",\s[^.!?;,:\n]{1,40},\s+(?=(?:is|was|are|were|has|have)\b)",
)
_PART_END = re.compile(
    any_of(
        rf"(?P<aside>{_ASIDE})",
        rf"[.!?;,:]\s|\n|{DASH}|\s\(",
        r"\b(?:but|while|whereas|although|though|that|which|who|whose|where|because|than)\b",
        # "and a bird is", "and lived"
        spaced(r"\band (?=(?:(?:the|an?|in) )?(?:[\w'-]+ ){0,4}?(?:is|are|was|were|has|have|had|can|[a-z]{2,}ed)\b)"),
    )
)

# "Although Lyon is a major city, | Paris is the capital."
_CONCESSION = any_case(
    r"(?:\A|[.!?\n])\W{0,3}(?:(?:sure|well|yes|no|okay|ok|right|actually),\s+)?",
    r"(?:although|(?:even\s+)?though|while|whereas)\b[^,.!?;:\n]*,(?=\s)",
)

_VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|can)\b")
# "Who invented the radio?"
_WHO = any_case(spaced(r"\W*who (?!(?:is|was|are|were)\b)(\w+)"))
# "What does an economist study?", and what another one does: "A geologist studies"
_DOES = any_case(spaced(r"\W*what does an? (?:\w+ )?(\w+) (\w+)\W*$"))
_ONE = any_case(spaced(r"\W*an? ((?:[\w-]+ ){1,4})"))
# "A device that measures" is the one that is asked about.
_ANY_TEXT = "devi inst tool mach obje gadg pers some scie spec expe prof rese type kind"
_ANY = tuple(_ANY_TEXT.split())
_SAME = 3  # letters that a name and its misspelling share: "altimeter" and "altometer"
_PRONOUN = any_case(r"\b(?:it|this|that|he|she|they|there|i|which|who)\s*$")
# "is correct.", "was indeed right"
_SURELY = "(?:(?:actually|definitely|clearly|certainly|indeed) )?"
_RIGHT_ALONE = spaced(rf"\b(?:is|was) {_SURELY}(?:right|correct|true)") + r"\s*(?=[.,!;:\n]|\Z)"
_NOT_OF_OTHER = r"(?:an?\s+)?(?:other|another|different)\b"  # "the answer to another question"
# "an obvious answer is", "your answer is": these are not said to be right
_NO_SUCH_ANSWER = "".join(
    f"(?<!{word} )"
    for word in (
        *("wrong", "incorrect", "tempting", "obvious", "intuitive", "common", "popular", "usual", "typical", "first"),
        *("your", "'s", r"\u2019s", "selected", "suggested", "given", "better"),
    )
)
# What says that the answer comes, or was it: not "Sydney is a common answer"
_SAYS_ANSWER = any_case(
    any_of(
        # "Rome is the answer", but not "The answer of most people is Rome"
        r"(?<!would be )(?<!could be )(?<!might be )\b(?:the\s+answer|(?:right|correct|true|actual|final)\s+(?:answer|one))\b(?!\s+"
        + any_of(
            r"(?-i:[A-Z])",
            r"\d",
            r"(?:if|in|of|for|by|given|most|many|some|people|refers|comes)\b",
            r"(?:that\s+)?(?:you|most|many|some|people)\b",
            rf"to\s+{_NOT_OF_OTHER}",
        )
        + ")",
        # "The answer to this question is"
        rf"{_NO_SUCH_ANSWER}\banswer(?:\s+(?:to(?!\s+{_NOT_OF_OTHER})|of)\b[^.!?\n]{{0,80}})?(?:\s+is\b|{APOSTROPHES}s\b|\s*[:=])",
        r"\bthe\s+(?:truth|reality)\s+is\b",
        rf"(?<!you )(?<!that )(?<!it ){_RIGHT_ALONE}",
        r"\bmakes?\s+more\s+sense\b",
        # "I'd rather go with Rome", "I agree with Rome"
        spaced(rf"\bI(?:{APOSTROPHES}(?:ll|d))? (?:\w+ )?(?:go with|accept)\b"),
        rf"\bagree\s+(?:with|on)\b(?!{IN_SENTENCE}\b(?:being|is|was|that)\b)",
    )
)
# "The answer is Sydney for the largest city"
_ANSWERS_ELSE = any_case(
    r"\banswer\s+(?:is|would\s+be)\s+[^.!?;,:\n]{1,40}?\s+",
    r"(?:(?:for|to)\s+(?:the|an?|another|your)|when|if)\b",
)
# "Sydney is the largest city", but not "Sydney is right", "Sydney is what is asked for"
_SAYS_IT = "right|correct|true|answer|ones?|same|what|it|that"
_DESCRIBED = any_case(
    rf"{CLOSED},?\s+(?:is|are|was|were|has|have|had|lies|remains)\b",
    rf"((?:(?!\b(?:{_SAYS_IT}|but)\b)[^.!?;:,\n])*\w(?:(?!\b(?:{_SAYS_IT})\b)[^.!?;:,\n])*)",
    r"(?=[.!?;:,\n]|\b(?:but|and)\b|\Z)",
)
_ENDS = re.compile(rf"{CLOSED}(?:[.,;!]|\s*\Z)")
# "Rome is the right answer", "Rome is right."
_SAYS_RIGHT = any_case(
    any_of(
        r"\bthe\s+(?:right|correct|true|actual|final)\s+(?:answer|one)\b(?!\s+(?:to|for|in|if|when|as)\b)",
        rf"(?<!it ){_RIGHT_ALONE}",
    )
)
# What might be, or is only thought: "The capital would be Rome", "Most people guess that the capital is Rome"
_SUPPOSES = any_case(
    any_of(
        r"\b"
        + any_of(
            r"if|should|would|could|might|may|used\s+to|once|until|before|whether",
            r"tells?|told|argued?|theor(?:y|ies)|speculated|proposed|debated?|rumou?rs?",
            r"said|thought|believed|assumed|claimed|guessed",
        )
        + r"\b",
        r"(?<!\bI )\b(?:think|believe|assume|suppose|guess|say|claim)s?\b",
    )
)
# "Some say that the capital is Rome"
_THAT = any_case(rf"{IN_CLAUSE}\b(?:that|whether)\s*\Z")
_WAS = any_case(r"\b(?:was|were)\b(?!\s+(?:\w+ly\s+|indeed\s+)?(?:right|correct|true)\b)")
# "The capital is Frankfort, not Fargo" is not about Fargo
_CONTRASTED = any_case(r",\s+not\s[^,;]*$")
# "Rome is the right city", "Rome is its capital", "Rome is correct": what is said of a name is that it is the answer.
_DEFINITE = any_case(r"\s*(?:been\s+)?(?:the\b|its\b|their\b|right\b|correct\b|\W*$)")
_SINCE = re.compile(r"\b(?:since|until)\s+\d.*", re.DOTALL)
# "the French capital"
_ADJECTIVE = re.compile(r"\b[A-Z]\w+\s+(?!(?:of|in|on|at|to|for|from|by|and|or|with)\b)(?=[a-z])")
_RIGHT = frozenset(["righ", "corr", "word", "term", "nam", "on"])
# "is located in the state of Texas"
_IN = re.compile(spaced(r"\bin (?:the (?:[\w.]+ ){1,3}of )?(?:the )?$"))
# "The capital of Peru is Lima", "The past tense of 'walking' is": what a sentence states something of, and what it states
_OF = spaced(r"\b(?:of|for) (?:the )?(?:[a-z]+ of )?") + r"[\"'(\u201c\u2018]*"
_IS = r"[\"')\u201d\u2019]*\s+(?:is|was|are|were)\b"
# "A mathematician studying earthquakes is known as a seismologist": what a clause gives another name
_NAMED = spaced(r" (?:\w+ )?(?:called|named|(?:known|referred to) as)\b")
# What is said to be answered: "The answer to the question "What is Peru?" is ..."
_QUOTED_QUESTION = re.compile(r"\bquestion:?\s+[\"\u201c]([^\"\u201c\u201d]+)")
# What refers to what the question names
_REFERS = any_case(r"\b(?:it|this|these|them)\b")
_PRONOUN_FIRST = any_case(r"\W*(?:(?:and|but|so)\s+)?(?:in\s+\d+,?\s+)?(?:it|this|that|he|she|they)\b")
# "Sydney is the largest city, but it is not the capital": a subject, and what the next clause denies of it
_SUBJECT = re.compile(rf"{CLOSED}\s+(?:is|was|may|might|has)\b(?!.*\b(?:is|was|are|were)\b)")
_DENIES = re.compile(
    spaced(
        r"\W*(?:(?i:however|but),? )?(?i:it|that|he|she)"
        rf"(?:{APOSTROPHES}s(?: \w+ly)? not| (?:is|was)(?:{NT}|(?: (?:\w+ly|in fact))? not)) "
    )
    + rf"(?:the|its|[\w ]{{1,40}}{APOSTROPHES}s)\s+([^,.!?;:\n]{{1,80}})"
)
# What is in quotes, or has a capital
_NAME = re.compile(r"[\"\u201c]([^\"\u201c\u201d\n]{1,80})[\"\u201d]|\b([A-Z]\w+)")

_PROPER = re.compile(r"\b[A-Z]\w+(?:\s+[A-Z]\w+)*")  # a name of several words

# "The state with the most people is Texas" does not answer in which state Dallas is.
_RANKED = any_case(r"\bwith\s+the\s+(most|least|fewest|\w+est)\b")
# "The states with Augusta as their capital are"
_PLURAL = any_case(r"\W*the\s+([^!?\n]{1,100}?)\s+are\b")

# The kind of thing that a question asks for, and the kind of what it asks about
_NO_KIND = "is|are|was|were|has|have|had|do|does|did|of|in|on|for|from|that"
_KINDS = any_case(
    any_of(
        # "Which large ocean", "What is the capital"
        spaced(rf"\b(?:which|what) (?:(?:is|was|are|were) the )?((?:(?!(?:{_NO_KIND})\b)[\w.-]+ ){{1,4}})"),
        # "What do you call a", "which kind of", "what type of the"
        spaced(r"\b(?:call an?|(?:kind|sort|type|part|class) of(?: the)?) (\w+)"),
        # "the city of Shreveport", "Rome as its capital"
        spaced(r"(?-i:\b(\w+) (?:of|from) (?:the )?[A-Z])"),
        spaced(r"\bas its (\w+)"),
    )
)

_SUPERLATIVE = any_case(spaced(r"\b(?:the|is|are|was) (?:world's )?(\w{3,}est)\b"))
# The second largest is not the largest.
_LESS = any_case(
    any_of(
        r"\b(?:second|third|fourth|fifth|next|one\s+of\s+the)[\s-]+\w+est\b",
        spaced(r"\b(?:among|list of) (?:the )?(?:world's )?\w+est\b"),
        spaced(r"\b(?:ranks?|comes?|is) (?:in )?(?:second|third|number two)\b"),
    )
)
_BETWEEN = 60


_ASKING = "kind type sort thing many much called named name word"  # words that only ask, as in "How many"
# "Which planet", "What U.S. state"
_WHICH = any_case(
    spaced(r"\b(?:which|what) (?:U\.S\. )?(?!(?:is|are|was|were|do|does|did|has|have|of|the|\w+est)\b)(\w+)")
)
# "What is the capital of France?": a word for what is asked for
_ASKED_FOR = any_case(spaced(r"\W*what (?:is|was|are|were) the (\w+) (?:of|in|on)\b"))

# What may stand before it: not "the economic capital"
_SAME_KIND = r"actual|official|correct|right|real|true|current|present|national"


# "It's Rome.", "Rome.", "No, Rome.", "but I think it is Rome", "Rome is.": a clause that says nothing else
_BARE_BEFORE = any_case(
    any_of(
        r"\A|[.!?;:\n\u2014]|\s[-\u2013]\s|\bbut\b|,\s+(?:so|it's|it\s+is)",
        r"\b(?:no|yes|right|correct|actually|rather|instead|indeed|fact|sorry|wait|agree|is),",
    ),
    r"[\s\"'*_(\u201c\u2018>#-]*",
    spaced(r"(?:(?:so|and|but|then|well|now|today|currently|actually|in fact|therefore|thus),? )?"),
    spaced(r"(?:I (?:\w+ )?(?:think|believe|say|agree)(?: that)?,? )?"),
    spaced(
        r"((?:it|that|this|he|she|they|these|those|(?:the|my) (?:number|total|result|name|word))"
        rf"(?:{APOSTROPHES}s| (?:is|are|was|were|has|have|must be|should be)) (?:\w+ly |now |indeed |in fact )?)?"
    ),
    spaced(r"(?:(?:called|named|in|by|on|a|an|the) ){0,2}"),
    rf"{OPENED}\Z",
)
_ALONE_AFTER = any_case(
    CLOSED,
    any_of(
        r"\s*(?:[.!;\n\u2014(]|\Z)",
        spaced(r",? (?:and )?(?:not|rather than|instead of|(?:even )?though|although|while)\b"),
        r"\s+it\s+is\b",
        r"\s+(?:is|was|did)\s*(?:[.!]|\Z)",
    ),
)
_BARE_AFTER = any_case(any_of(_ALONE_AFTER.pattern, rf"{CLOSED}(?:,\s|\s[-\u2013]\s)"))
# "not Rome", "not in Rome", "did not write it", and "Rome is not", "Rome? No"
_NOT = any_case(any_of(r"\b(?:not|never|nor|neither|rather\s+than|instead\s+of)\b", rf"{NT}\b"), r"([^.!?,;:\n]*)\Z")
_BEFORE_DENIED_TEXT = "a an the in by of from to for as with actually really called named known written"
_BEFORE_DENIED = frozenset(_BEFORE_DENIED_TEXT.split())
_IS_NOT = any_case(
    CLOSED,
    any_of(
        rf",?\s+(?:is|was|are|were){NOT}\b([^.!?,;:\n]*)",
        r",?\s+(?:is|was)\s+(?:wrong|incorrect|false)\b()",
        r"\?\s+No\b()",
    ),
)


def _is_kind(kind: str, verb: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns what stands before and after the name of a kind of thing: "the capital of France is", "is the capital"."""
    the = rf"\b(?:the|its|their|whose|(?P<owner>\w+){APOSTROPHES}s)\s+(?:(?:{_SAME_KIND})\s+)?{re.escape(kind)}\b"
    of = r"(?P<of>\s+(?:of|in|for)\s+[^,.!?;:\n]{1,40}?)?"
    aside = r"(?:,[^,.!?;:\n]{1,40},|\s+\([^()\n]{1,60}\))?"
    verb = r"(?:is|has\s+been)" if verb == "is" else verb
    return (
        re.compile(rf"{the}{of}{aside}\s+{verb}\s+(?:\w+ly\s+)?{OPENED}$", re.IGNORECASE),
        re.compile(
            rf"{CLOSED}\s+{verb}\s+(?:\w+ly\s+)?{the}{of}(?=[.,!;:\n]|\s+(?:and|but|while|since)\b|\s*\Z)",
            re.IGNORECASE,
        ),
    )


class Clause(NamedTuple):
    """
    A clause: where its verb is, the words before the verb, and those of them that name what the question does not have. It also
    says whether the clause can give no other answer than the names that are looked for: then it has none of the question's
    words, and does not begin with "The tool is".
    """

    verb: int
    subject: frozenset[str]
    named: frozenset[str]
    gives_none: bool


class Part(NamedTuple):
    """
    A part of a reply: where it starts, whether it has all words of the question, only supposes something, or says that something is the
    answer, the right one, or only the second largest.
    """

    start: int
    has_all: bool = False
    supposes: bool = False
    says_answer: bool = False
    says_right: bool = False
    says_less: bool = False


class Clauses:
    """
    The clauses of a reply.

    Args:
        text (`str`):
            The reply.
        question (`str`):
            The question.
    """

    def __init__(self, text: str, question: str) -> None:
        question = question[: question.rfind("?") + 1] or question  # "... Answer briefly."
        self.text, self.asked = text, stems(question)
        kinds = " ".join(" ".join(filter(None, match.groups())) for match in _KINDS.finditer(question))
        # Who invented something, and only he, is an inventor.
        did = _WHO.match(question)
        self.verb = re.compile(rf"{_VERB.pattern}|\b{re.escape(did[1])}\b") if did else _VERB
        kinds += f" {did[1]}" if did else ""
        self.does = _DOES.match(question.lower())
        # "Largest" tells one ocean from the others.
        self.kinds = stems(" ".join(word for word in kinds.split() if not word.endswith("est")))
        self.topic = self.asked - self.kinds
        # What an answer in a full sentence has: "World War II ended in 1945" need not say that this is a year.
        self.required = self.asked - stems(_ASKING) - stems(" ".join(_WHICH.findall(question)))
        asked_for = _ASKED_FOR.match(question)
        self.asks_past = did is not None or re.search(r"\b(?:was|were|did)\b", question.lower()) is not None
        self.kind = None if asked_for is None else _is_kind(asked_for[1], "was" if self.asks_past else "is")
        self.asked_kind = frozenset() if asked_for is None else stems(asked_for[1])
        superlative = _SUPERLATIVE.search(question)
        self.superlative = superlative[1].lower() if superlative else None
        after = _WORD.search(question, superlative.end()) if superlative else None
        most = rf"\b{self.superlative}\s+(?:{after[0]}|\W*\Z|[.,;!])" if after else ""
        self.most = re.compile(most, re.IGNORECASE)  # "the largest mammal", not "the largest land mammal"
        named = " ".join(match[1] or match[2] for match in _NAME.finditer(question))
        # The words of its names, or else all its words, as they stand: not "walked" for "walk"
        self.named = _words(named) or _words(question)
        self.asked_names = stems(named) - self.kinds
        ends = {match.end() for pattern in (_CLAUSE_END, _CONCESSION) for match in pattern.finditer(text)}
        bounds = [0, *sorted(ends), len(text)]
        self.starts, self.ends = bounds[:-1], bounds[1:]
        self.clauses = [self._read(*of) for of in pairwise(bounds)]
        # The last clause that says of an earlier subject what is asked: "Oslo is a city. It is the capital of Norway."
        resumed = (number for number, of in enumerate(pairwise(bounds)) if self._resumes(text[slice(*of)]))
        self.last_resumed = max(resumed, default=0)
        self.asks_less = _LESS.search(question) is not None
        ends_of_parts = (match.end() for match in _PART_END.finditer(text) if not match["aside"])
        self.parts = [self._read_part(*of) for of in pairwise([0, *ends_of_parts, len(text)])]
        self.sentence_ends = [match.end() for match in SENTENCE_END.finditer(text)]
        quoted = _QUOTED_QUESTION.finditer(text)
        self.of_other_questions = {
            self.sentence(of.start())
            for of in quoted
            if self.asked and not self._has(of[1], self.asked_names or self.topic)
        }

    def sentence(self, start: int) -> int:
        """Returns the number of the sentence that a position is in."""
        return bisect(self.sentence_ends, start)

    def sentence_start(self, position: int) -> int:
        """Returns where the sentence of a position starts."""
        return max((end for end in self.sentence_ends if end <= position), default=0)

    def sentence_at(self, position: int) -> str:
        """Returns the sentence that a position is in."""
        ends = [*self.sentence_ends, len(self.text)]
        return self.text[
            self.sentence_start(position) : next(end for end in ends if end > position or end == len(self.text))
        ]

    def goes_on(self, start: int) -> bool:
        """Returns whether a sentence that starts here begins with a pronoun for what the last one said."""
        return _PRONOUN_FIRST.match(self.text, start) is not None

    def _read(self, start: int, end: int) -> Clause | None:
        """Returns a clause that says nothing of what the question is about; None for all others."""
        clause = self.text[start:end]
        verb = self.verb.search(clause)
        names = self.asked_names or self.topic
        if not names or not verb or _REFERS.search(clause) or self._has(clause, names):
            return None
        is_most = self.superlative is not None and self.superlative in _WORD.findall(clause.lower())
        if is_most and len(_PROPER.findall(clause)) < 3 and not _LESS.search(clause):
            return None  # "The highest is Kilimanjaro"
        subject, predicate = clause[: verb.start()], _SINCE.sub("", clause[verb.end() :])
        if _PRONOUN.search(subject):
            return None
        if _DEFINITE.match(predicate) and stems(_ADJECTIVE.sub("", predicate)) <= self.kinds | _RIGHT:
            return None
        is_apart = not self._has(clause, self.topic)
        named = self._names(subject).union(_RANKED.findall(subject)) if is_apart else frozenset()
        gives_none = is_apart and (bool(named) or not _DEFINITE.match(subject))
        return Clause(start + verb.start(), frozenset(_WORD.findall(subject.lower())), named, gives_none)

    def _resumes(self, clause: str) -> bool:
        return _PRONOUN_FIRST.match(clause) is not None and self._has(clause, self.asked_names or self.topic)

    def _has(self, part: str, sought: frozenset[str]) -> bool:
        """Returns whether a part has one of these words, or says that it is the answer."""
        words = stems(_CONTRASTED.sub("", part))
        return "answ" in words or not words.isdisjoint(sought)

    def _names(self, part: str) -> frozenset[str]:
        """Returns the words of names and quotes that the question does not have."""
        words = {word for of in _NAME.finditer(part) for word in _WORD.findall((of[1] or of[2]).lower())}
        return frozenset(word for word in words - _OPENING_WORDS if stems(word).isdisjoint(self.asked))

    def _read_part(self, start: int, end: int) -> Part:
        text = self.text[start:end]
        # "Most people guess | that the capital is Rome"
        led = _THAT.search(self.text, max(start - _BETWEEN, 0), start)
        supposes = any(pattern.search((led[0] if led else "") + text) for pattern in (_SUPPOSES, _ANSWERS_ELSE))
        supposes = supposes or (
            not self.asks_past and _WAS.search(text) is not None
        )  # "Before 1960, the capital was Rio"
        says_less = not self.asks_less and _LESS.search(text) is not None
        if supposes or says_less:
            return Part(start, supposes=supposes, says_less=says_less)
        # "A high mountain" is not the highest.
        is_superlative = self.superlative is None or self.most.search(text) is not None
        has_all = bool(self.required) and self.required <= stems(text) and is_superlative
        says_answer, says_right = (pattern.search(text) is not None for pattern in (_SAYS_ANSWER, _SAYS_RIGHT))
        return Part(start, has_all, says_answer=says_answer, says_right=says_right)

    def is_elsewhere(self, start: int, mention: str = "") -> bool:
        """
        Returns whether a mention does not answer the question because its clause is about something else: the clause has a
        verb, but nothing of what the question is about, and no pronoun for it. There a name before the verb is what the
        clause is about: "Lao is a language of Laos". So is a name that is said of another one: "The mayor of Smithville is
        Rome". So is a name if the next clause denies of it what is asked. "The tool is a hammer" and "He was born in Rome" do
        answer. So may a name that a later clause takes up: "Oslo is a city. It is the capital of Norway". A whole sentence is about
        something else if it answers another question that it quotes. Without a mention, returns whether the clause gives no
        answer at all.
        """
        if self.sentence(start) in self.of_other_questions:
            return True
        number = bisect(self.starts, start) - 1
        clause = self.clauses[number]
        if mention and self._is_of_another(self.text[self.starts[number] : start]):
            return True
        if mention and self.is_denied_next(start + len(mention)):
            return True
        if clause is None:
            return False
        words = set(_WORD.findall(mention.lower()))
        if not words:
            return clause.gives_none
        if not words.issuperset(clause.named):
            return True
        is_subject = start < clause.verb or clause.subject.issuperset(words)
        # "Spain is a country in Spain" is about Spain alone.
        is_in = not clause.subject - FUNCTION_WORDS <= words and _IN.search(
            self.text, max(clause.verb, start - _BETWEEN), start
        )
        if not is_subject or is_in:
            return False
        return number >= self.last_resumed

    def are_elsewhere(self, start: int, end: int) -> bool:
        """Returns whether all clauses that begin in a part of the text give no answer at all."""
        others = self.starts[bisect(self.starts, start) : bisect_left(self.starts, end)]
        return all(map(self.is_elsewhere, [start, *others]))

    def _is_of_another(self, clause: str) -> bool:
        """Returns whether a clause begins with "A geologist" where it is asked what an economist does."""
        one = _ONE.match(clause)
        if self.does is None or one is None:
            return False
        doer, verb = self.does.groups()
        until_verb = takewhile(
            lambda word: word[:_STEM] != verb[:_STEM] and not _VERB.fullmatch(word), _WORD.findall(one[1].lower())
        )
        words = list(until_verb)
        return bool(words) and not any(word[:_SAME] == doer[:_SAME] or word.startswith(_ANY) for word in words)

    def is_denied_next(self, end: int) -> bool:
        """Returns whether the next clause denies what is asked of the subject that ends here: "Rome is old, but it isn't the capital"."""
        clause_end = self.ends[bisect(self.starts, end - 1) - 1]
        if clause_end - end > 3 * _BETWEEN or not _SUBJECT.match(self.text, end, clause_end):
            return False
        denies = _DENIES.match(self.text, clause_end)
        if denies is None:
            return False
        denied = stems(denies[1])
        return bool(denied) and denied <= self.asked

    def is_asked_of(self, start: int, mention: str) -> bool:
        """
        Returns whether the clause here states something of this mention, and not of what the question is about: "The capital of
        Peru is Lima" does not answer which country has Rome as its capital. To give another name is to state something.
        """
        number = bisect(self.starts, start) - 1
        begin, end = max(self.starts[number], start - _BETWEEN), min(self.ends[number], start + 3 * _BETWEEN)
        pattern = compiled(rf"({_OF})?({re.escape(mention)}){_IS}(?(1)|{_NAMED})(.*)")
        stated = pattern.search(self.text, begin, end)
        if not self.asked or stated is None or start > stated.start(2):
            return False
        # "Lima City" does not name Rome City.
        other = next((of for of in _PROPER.findall(stated[3]) if self._names(of)), "")
        words = _words(stated[3]) - _words(other)
        return (
            not (_REFERS.search(stated[3]) or words & (self.named | {"answer", "right", "correct"}))
            and _WORD.search(stated[3]) is not None
        )

    def gives_several(self) -> bool:
        """Returns whether the text begins to list several of the kind that is asked for: "The states with this capital are"."""
        plural = _PLURAL.match(self.text)
        words = _WORD.findall(plural[1]) if plural else []
        return any(
            word.endswith("s") and not self.kinds.isdisjoint(stems(word)) for word in words if len(word) > _STEM
        )

    def deciding(self, rivals: Mapping[re.Match[str], str]) -> list[re.Match[str]]:
        """
        Returns those of the mentions of different answers that are plainly given, if they are of one answer, and all others are only
        described: "It's Canberra. Sydney is the largest city". Else returns none.
        """
        given = {answer for match, answer in rivals.items() if self.states(match)}
        named = [match for match, answer in rivals.items() if answer in given]
        others = [match for match in rivals if match not in named]
        if len(given) != 1 or any(map(self.gives, others)):
            return []
        last = self.part(list(rivals)[-1])  # "I first thought Sydney, but Canberra is right."
        ends_with_it = named[-1] == list(rivals)[-1] and (last.says_answer or last.says_right)
        return named if ends_with_it or all(map(self.is_described, others)) else []

    def states(self, match: re.Match[str]) -> bool:
        """
        Returns whether a mention is plainly given: its part says that it is the answer, or what is asked for; or nothing else is said
        there: "Rome.", "It's Rome".
        """
        part = self.part(match)
        if part.says_answer or part.says_right or self._is_the_kind(match):
            return True
        before = self.text[max(match.start(1) - 2 * _BETWEEN, 0) : match.start(1)]
        bare = None if part.supposes else _BARE_BEFORE.search(before)
        return (
            bare is not None and (_BARE_AFTER if bare[1] else _ALONE_AFTER).match(self.text, match.end(1)) is not None
        )

    def gives(self, match: re.Match[str]) -> bool:
        """Returns whether a mention is plainly given, or its part has all words of the question, or what is the most of all."""
        if self.states(match) or self.part(match).has_all:
            return True
        is_most = rf"[\"'*_)\u201d\u2019]*\s(?:is|was)\s+the\s+{self.superlative}(?:\s+one)?\s*(?:[.,!;]|\Z)"
        return self.superlative is not None and re.match(is_most, self.text[match.end(1) :][:_BETWEEN]) is not None

    def denies(self, match: re.Match[str]) -> bool:
        """Returns whether a mention is denied by itself as what is asked for: "not Rome", "Rome is not the capital"."""
        not_before = _NOT.search(self.text, max(match.start(1) - _BETWEEN, 0), match.start(1))
        if not_before is not None:
            words = _WORD.findall(not_before[1].lower())
            return all(word in _BEFORE_DENIED or _stem(word) in self.asked for word in words)
        is_not = _IS_NOT.match(self.text, match.end(1))
        return is_not is not None and stems(next(filter(None, is_not.groups()), "")) <= self.asked | _RIGHT

    def share_of_question(self, match: re.Match[str], names: Iterable[str]) -> float:
        """Returns what share of the question's words, without these names, the part of a mention has near it."""
        number = bisect(self.parts, match.start(1), key=attrgetter("start")) - 1
        end = self.parts[number + 1].start if number + 1 < len(self.parts) else len(self.text)
        part = self.text[max(self.parts[number].start, match.start(1) - _NEAR) : min(end, match.end(1) + _NEAR)]
        asked = self.asked - stems(" ".join(names))
        return len(stems(part) & asked) / len(asked) if asked else 1.0

    def part(self, match: re.Match[str]) -> Part:
        """Returns the part that a mention is in, or that before it if it stands alone behind a comma: "born in Florence, Italy."."""
        number = bisect(self.parts, match.start(1), key=attrgetter("start")) - 1
        part = self.parts[number]
        is_near = match.start(1) - part.start < _BETWEEN and self.text[part.start - 2 : part.start - 1] == ","
        is_apposed = (
            is_near
            and not self.text[part.start : match.start(1)].strip(" \"'*_")
            and _ENDS.match(self.text, match.end(1)) is not None
        )
        return self.parts[number - 1] if is_apposed else part

    def is_described(self, match: re.Match[str]) -> bool:
        """Returns whether a mention is only said to be something that is not asked for: "Sydney is large", "Sydney is the largest city"."""
        described = _DESCRIBED.match(self.text, match.end(1))
        if described is None:
            return self.is_elsewhere(match.start(1), match[1])
        return stems(described[1]).isdisjoint(self.asked_kind)

    def _is_the_kind(self, match: re.Match[str]) -> bool:
        """Returns whether a mention is said to be what is asked for: "the capital of France is Paris", "Paris is its capital"."""
        if self.kind is None or self.part(match).supposes:
            return False
        said = self.kind[0].search(self.text[max(match.start(1) - 2 * _BETWEEN, 0) : match.start(1)])
        said = said or self.kind[1].match(self.text, match.end(1))
        # "Vienna is Austria's capital" does not say what is the capital of Germany.
        return said is not None and stems(f"{said['of'] or ''} {said['owner'] or ''}") <= self.asked


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower())) - FUNCTION_WORDS


def stems(text: str) -> frozenset[str]:
    """Returns the words of a text that say something, each cut to what its forms share."""
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()) if word not in FUNCTION_WORDS)


def _stem(word: str) -> str:
    """Returns what "ended" and "end", "died" and "die" share."""
    return word.removesuffix("ed").rstrip("s").removesuffix("e")[:_STEM] or word
