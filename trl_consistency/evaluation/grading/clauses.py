"""Tells which clause of a reply answers the question, by the words that the two share and the names that they do not."""

import re
from bisect import bisect, bisect_left
from collections.abc import Sequence
from itertools import pairwise, takewhile
from operator import attrgetter
from typing import NamedTuple


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
_STEM = 4  # letters that the forms of a word share: "largest" and "larger", "studies" and "study"

# The full stops of "U.S. state" and "H.G. Wells" end no sentence.
SENTENCE_END = re.compile(r"(?<!\.[A-Z])[.!?][\"'*)\u201d\u2019]{0,3}\s+(?=[A-Z\"'*(\u201c])|\n")
_CLAUSE_END = re.compile(
    rf"{SENTENCE_END.pattern}|[;?]|\b(?:but|while|whereas|although|though|however)\b|\band\s+(?=(?:it|this|that|he|she|they)\b)|"
    r",\s+and\s+(?=(?:the|an?)\s+(?:[\w'-]+\s+){1,4}(?:is|are|was|were|has|have|can)\b)|"
    r",\s+and\s+(?=(?:[A-Z][\w'-]+\s+){1,3}(?:is|are|was|were|has|have|can)\b(?![^.!?;\n]*\b(?:there|it|this)\b))"
)
# The parts whose words are compared with the question's: "A bat is a mammal, | but a bird is an animal | that can fly". An aside
# ends none: "The capital, however, is Canberra".
_PART_END = re.compile(
    r"(?P<aside>,\s+(?:however|though|in\s+fact|of\s+course|actually|instead|indeed),\s|,\s[^.!?;,:\n]{1,40},\s+(?=(?:is|was|are|were|has|have)\b))|"
    r"[.!?;,]\s|\n|\b(?:but|while|whereas|although|though|that|which|who|whose|where|because|than)\b|"
    r"\band\s+(?=(?:(?:the|an?|in)\s+)?(?:[\w'-]+\s+){0,4}?(?:is|are|was|were|has|have|had|can|[a-z]{2,}ed)\b)"
)

# What comes later in a sentence with such a word may be the answer, too: "Cows make milk, while bees make honey".
_LATER = re.compile(r"\b(?:(while|whereas)|(?:even\s+)?(?:though|although))\b", re.IGNORECASE)
_TWO_WORDS = re.compile(r"\w[^.!?;:\n]*[^\w.!?;:\n][^.!?;:\n]*\w[^.!?;:\n]*\Z")
_RELATIVE = ("which", "who", "whose", "where")

# "Although Lyon is a major city, | Paris is the capital."
_CONCESSION = re.compile(
    r"(?:\A|[.!?\n])\W{0,3}(?:(?:sure|well|yes|no|okay|ok|right|actually),\s+)?(?:although|(?:even\s+)?though|while|whereas)\b"
    r"[^,.!?;:\n]*,(?=\s)",
    re.IGNORECASE,
)

# What is said of something, and not what it is: "a spice made from the fruit of a plant", "2 cups for 4 people", "after Tuesday"
_MODIFIES_NUMBER = re.compile(r"\b(?:of|on|over|with|for|by|no|after|before)\s+(?:[^\W\d]+\s+){0,3}$", re.IGNORECASE)
_AFTER = re.compile(r"\b(?:after|before)\s+(?:the\s+)?$", re.IGNORECASE)
_MODIFIES = re.compile(
    r"\b(?:of|in|on|over|from|with|near|at|for|to|by|no)\s+(?:(?!(?:and|or|but)\b)\w+\s+){0,3}$", re.IGNORECASE
)

_VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|can)\b")
_WHO = re.compile(r"\W*who\s+(?!(?:is|was|are|were)\b)(\w+)", re.IGNORECASE)
# "What does an economist study?", and what another one does: "A geologist studies"
_DOES = re.compile(r"\W*what\s+does\s+an?\s+(?:\w+\s+)?(\w+)\s+(\w+)\W*$", re.IGNORECASE)
_ONE = re.compile(r"\W*an?\s+((?:[\w-]+\s+){1,4})", re.IGNORECASE)
# "A device that measures" is the one that is asked about.
_ANY = (
    "devi",
    "inst",
    "tool",
    "mach",
    "obje",
    "gadg",
    "pers",
    "some",
    "scie",
    "spec",
    "expe",
    "prof",
    "rese",
    "type",
    "kind",
)
_SAME = 3  # letters that a name and its misspelling share: "altimeter" and "altometer"
_PRONOUN = re.compile(r"\b(?:it|this|that|he|she|they|there|i|which|who)\s*$", re.IGNORECASE)
# What says that the answer comes, or was it: not "Sydney is a common answer"
_SAYS_ANSWER = re.compile(
    r"(?<!would be )(?<!could be )(?<!might be )\b(?:(?:the|my)\s+answer|(?:right|correct|true|actual|final)\s+(?:answer|one))\b"
    r"(?!\s+(?:(?-i:[A-Z])|if\b|to\s+(?:an?\s+)?(?:other|another|different)\b))|"
    r"(?<!wrong )(?<!incorrect )(?<!tempting )(?<!obvious )(?<!intuitive )(?<!common )(?<!popular )(?<!usual )(?<!typical )(?<!first )"
    r"\banswer(?:\s+(?:to(?!\s+(?:an?\s+)?(?:other|another|different)\b)|of)\b[^.!?\n]{0,80})?(?:\s+(?:is|was)\b|['\u2019]s\b|\s*[:=])|"
    r"\bthe\s+(?:truth|reality|fact)\s+is\b|"
    r"(?<!you )(?<!that )\b(?:is|was|sounds)\s+(?:\w+ly\s+|indeed\s+)?(?:right|correct|true)\b|\bmakes?\s+more\s+sense\b|"
    r"\bI(?:['\u2019](?:ll|d))?\s+(?:\w+\s+)?(?:go\s+with|accept)\b|\bagree\s+(?:with|on)\b",
    re.IGNORECASE,
)
_CONTRASTED = re.compile(
    r",\s+not\s[^,;]*$", re.IGNORECASE
)  # "The capital is Frankfort, not Fargo" is not about Fargo
# "Rome is the right city", "Rome is its capital", "Rome is correct": what is said of a name is that it is the answer.
_DEFINITE = re.compile(r"\s*(?:been\s+)?(?:the\b|its\b|their\b|right\b|correct\b|\W*$)", re.IGNORECASE)
_SINCE = re.compile(r"\b(?:since|until)\s+\d.*", re.DOTALL)
_ADJECTIVE = re.compile(
    r"\b[A-Z]\w+\s+(?!(?:of|in|on|at|to|for|from|by|and|or|with)\b)(?=[a-z])"
)  # "the French capital"
_RIGHT = frozenset(["righ", "corr", "word", "term", "nam", "on"])
_IN = re.compile(r"\bin\s+(?:the\s+(?:[\w.]+\s+){1,3}of\s+)?(?:the\s+)?$")  # "is located in the state of Texas"
# "The capital of Peru is Lima", "The past tense of 'walking' is": what a sentence states something of, and what it states
_OF = r"\b(?:of|for)\s+(?:the\s+)?(?:[a-z]+\s+of\s+)?[\"'(\u201c\u2018]*"
_IS = r"[\"')\u201d\u2019]*\s+(?:is|was|are|were)\b"
# "A mathematician studying earthquakes is known as a seismologist": what a clause gives another name
_NAMED = r"\s+(?:\w+\s+)?(?:called|named|(?:known|referred\s+to)\s+as)\b"
# What is said to be answered: "The answer to the question "What is Peru?" is ..."
_QUOTED_QUESTION = re.compile(r"\bquestion:?\s+[\"\u201c]([^\"\u201c\u201d]+)")
_REFERS = re.compile(r"\b(?:it|this|these|them)\b", re.IGNORECASE)  # to what the question names
_IT_IS = re.compile(
    r"(?:\A|[.!?;:,\n])\W*(?:it|that|he|she|they)(?:['\u2019](?:s|re)|\s+(?:is|was|are|were))\s+(?:\w+ly\s+|in\s+fact\s+)?(?:(?:the|an?)\s+)?\W*$",
    re.IGNORECASE,
)
_BUT = re.compile(r"\b(?:but|while|whereas)\s+(?:the\s+)?\W*$", re.IGNORECASE)
_IS_ALONE = re.compile(r"\W*\s(?:is|was|are|were|has|have|can|does|did)\s*(?:[.!]|$)")
_VERB_FIRST = re.compile(
    r"(?:[a-z]{2,}ed|is|are|was|were|has|have|had)\b"
)  # "was born in 1756 | and passed away in 1791"
_PRONOUN_FIRST = re.compile(
    r"\W*(?:(?:and|but|so)\s+)?(?:in\s+\d+,?\s+)?(?:it|this|that|he|she|they)\b", re.IGNORECASE
)
# "Sydney is the largest city, but it is not the capital": a subject, and what the next clause denies of it
_SUBJECT = re.compile(r"[\"'*_)\u201d\u2019]*\s+(?:is|was|may|might|has)\b(?!.*\b(?:is|was|are|were)\b)")
_DENIES = re.compile(
    r"\W*(?:(?i:however|but),?\s+)?(?i:it|that|he|she)(?:['\u2019]s\s+not|\s+(?:is|was)(?:n['\u2019]t|\s+not))\s+(?:the|its|[\w ]{1,40}['\u2019]s)\s+"
    r"([^,.!?;:\n]{1,80})"
)
_NAME = re.compile(
    r"[\"\u201c]([^\"\u201c\u201d\n]{1,80})[\"\u201d]|\b([A-Z]\w+)"
)  # what is in quotes, or has a capital

_PROPER = re.compile(r"\b[A-Z]\w+(?:\s+[A-Z]\w+)*")  # a name of several words

# "The state with the most people is Texas" does not answer in which state Dallas is.
_RANKED = re.compile(r"\bwith\s+the\s+(most|least|fewest|\w+est)\b", re.IGNORECASE)
# "The states with Augusta as their capital are"
_PLURAL = re.compile(r"\W*the\s+([^!?\n]{1,100}?)\s+are\b", re.IGNORECASE)

# The kind of thing that a question asks for, and the kind of what it asks about: "the city of Shreveport", "Rome as its
# capital".
_KINDS = re.compile(
    r"\b(?:which|what)\s+(?:(?:is|was|are|were)\s+the\s+)?((?:(?!(?:is|are|was|were|has|have|had|do|does|did|of|in|on|for|from|that)\b)"
    r"[\w.-]+\s+){1,4})|\b(?:call\s+an?|(?:kind|sort|type|part|class)\s+of(?:\s+the)?)\s+(\w+)|"
    r"(?-i:\b(\w+)\s+(?:of|from)\s+(?:the\s+)?[A-Z])|\bas\s+its\s+(\w+)",
    re.IGNORECASE,
)

# Two mentions are named together if only such words, or other members of a list, stand between: "weight, height, and time".
_TOGETHER = re.compile(
    r"(?=.*?(?:,|/|&|\b(?:or|and)\b))(?:[\s\"'*_()/&,\u201c\u201d]|\b(?:or|and|both|either|also|maybe|perhaps|the|an?|in|as|well)\b|\b\w+(?=,))*",
    re.IGNORECASE,
)
# "A year after D-Day" does not answer in which year the war ended.
_YEARS_LATER = re.compile(
    r"\b(?:years?|months?|weeks?|days?|decades?)\s+(?:after|before|later|earlier)\b", re.IGNORECASE
)
_EVEN = re.compile(r"\beven\s+\w+er\b")  # "but Kilimanjaro is even higher"
_SUPERLATIVE = re.compile(r"\b(?:the|is|are|was)\s+(?:world's\s+)?(\w{3,}est)\b", re.IGNORECASE)
# The second largest is not the largest.
_LESS = re.compile(r"\b(?:second|third|fourth|fifth|next|one\s+of\s+the)[\s-]+\w+est\b", re.IGNORECASE)
_NEXT_SUBJECT = re.compile(r"[\"'*_)\u201d]*\s+(?:is|are|was|were|has|have|can)\b")
_BETWEEN = 60


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
    A part of a reply: where it starts, which words of the question it has, and how much these weigh. What comes later in a
    sentence with "while" or "although" is a contrast, or a concession. A relative clause describes what is before it. A
    pronoun or a verb at the beginning says something of what is before it.
    """

    start: int
    words: frozenset[str]
    weight: float
    is_contrast: bool = False
    is_concession: bool = False
    is_relative: bool = False
    is_pronoun: bool = False


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
        superlative = _SUPERLATIVE.search(question)
        self.superlative = superlative[1].lower() if superlative else None
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
        later = {
            match.end(): match[1] is not None
            for match in _LATER.finditer(text)
            if _TWO_WORDS.search(text, max(match.start() - _BETWEEN, 0), match.start())
        }
        joints = {0: ""} | {match.end(): match[0].lower() for match in _PART_END.finditer(text) if not match["aside"]}
        self.parts = [
            self._read_part(start, text[start:end], later.get(start), joints[start] in _RELATIVE)
            for start, end in pairwise([*joints, len(text)])
        ]
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

    def _read_part(self, start: int, text: str, is_contrast: bool | None, is_relative: bool) -> Part:
        asked = self.asked
        if self.superlative and self.superlative not in text.lower() and not _EVEN.search(text):
            asked = asked - stems(self.superlative)  # "a high mountain" is not the highest
        words = self.asked if _SAYS_ANSWER.search(text) else stems(_YEARS_LATER.sub("", text)) & asked
        # Of two with as many of its words, that with the kind that is asked for: "Sydney is big in Australia, but the capital is"
        weight = len(words) + 0.5 * (not words.isdisjoint(self.kinds))
        if not self.asks_less and _LESS.search(text):
            words, weight = frozenset(), 0
        is_pronoun = bool(_PRONOUN_FIRST.match(text) or _VERB_FIRST.match(text))
        return Part(start, words, weight, is_contrast is True, is_contrast is False, is_relative, is_pronoun)

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
        if mention and self._is_denied_next(number, start + len(mention)):
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

    def _is_denied_next(self, number: int, end: int) -> bool:
        """Returns whether the next clause denies what is asked of the subject that ends here: "Rome is old, but it isn't the capital"."""
        clause_end = self.ends[number]
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
        pattern = re.compile(rf"({_OF})?({re.escape(mention)}){_IS}(?(1)|{_NAMED})(.*)")
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

    def answering(self, found: Sequence[re.Match[str]]) -> list[re.Match[str]]:
        """
        Returns the mentions in the parts of the text that share most words with the question: of each sentence the first,
        and those that are named together with it ("Rome or Paris"). So is what another part gives that has a word of the question
        which these do not have: "Water boils at 100 degrees, but it freezes at 0".
        """
        parts = [self.parts[bisect(self.parts, match.start(1), key=attrgetter("start")) - 1] for match in found]
        is_said = any(not part.weight and not part.is_concession for part in parts)
        candidates = {part for part in parts if not (is_said and self._is_conceded(part))}
        most = max((part.weight for part in candidates), default=0)
        given: list[re.Match[str]] = []
        best: Part | None = None
        for match, part in zip(found, parts, strict=True):
            is_new = not given or self.sentence(match.start(1)) != self.sentence(given[-1].start(1))
            is_best = is_new and part in candidates and part.weight == most
            if is_best or (given and _are_together(self.text, given[-1], match)):
                given.append(match)
                best = best or part
        known = {match.start(1) for match in given}
        others = ((match, part) for match, part in zip(found, parts, strict=True) if match.start(1) not in known)
        return given + [
            match
            for match, part in others
            if part in candidates and best is not None and self._rivals(match, part, best)
        ]

    def _is_conceded(self, part: Part) -> bool:
        """Returns whether a part only concedes something: "It is Paris, although Lyon is a city in France"."""
        return part.is_concession and not (part.words >= self.asked or part.words & self.kinds)

    def _rivals(self, match: re.Match[str], part: Part, first: Part) -> bool:
        """Returns whether a mention and its part may answer the question as well as the first of the best ones."""
        is_later = part.is_contrast or part.is_concession
        if (first.is_contrast or first.is_concession) and not part.weight:
            return True  # "It is Paris, while Lyon is a city in France"
        if is_later and part.words >= self.asked:
            return True
        before = self.text[max(match.start(1) - _BETWEEN, 0) : match.start(1)]
        modifies = _MODIFIES if not match[1][-1].isdigit() else _MODIFIES_NUMBER
        is_modifier = bool(modifies.search(before) or (part == first and _AFTER.search(before)))
        if part.is_pronoun and not is_modifier and part.start > first.start and not first.words >= self.topic:
            return True  # "Mozart was born in 1756. He fell ill in 1791."
        is_of_kind = bool(first.words & self.kinds) > bool(part.words & (self.kinds | stems(self.superlative or "")))
        if not (first.words >= self.asked or part.words <= first.words or is_of_kind):
            return True  # "Water boils at 100 degrees, but it freezes at 0"
        is_elliptic = _BUT.search(before) and _IS_ALONE.match(self.text, match.end(1))
        if part.start > first.start and (is_elliptic or _IT_IS.search(before)):
            return True  # "Rome as the capital of France? A myth. It is Paris.", "Many think so, but Paris is."
        # "Plants take in carbon dioxide and give off oxygen", but not "a spice made from the fruit of a plant"
        return part.weight == first.weight and not part.is_relative and not is_modifier


def _are_together(text: str, first: re.Match[str], second: re.Match[str]) -> bool:
    between = text[first.end(1) : second.start(1)]
    if len(between) > _BETWEEN or not _TOGETHER.fullmatch(between):
        return False
    return "or" in between.split() or not _NEXT_SUBJECT.match(text, second.end(1))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower())) - FUNCTION_WORDS


def stems(text: str) -> frozenset[str]:
    """Returns the words of a text that say something, each cut to what its forms share."""
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()) if word not in FUNCTION_WORDS)


def _stem(word: str) -> str:
    """Returns what "ended" and "end", "died" and "die" share."""
    return word.removesuffix("ed").rstrip("s").removesuffix("e")[:_STEM] or word
