"""Tells which mentions of an answer give it: not those that are denied, corrected, described, or the user's."""

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise


# Characters before an answer that are searched for a denial. The bound keeps reading linear in the answer's length.
_CONTEXT, _NEAR_DENIAL = 80, 16
# Words of a reply that is long enough to have been cut where it ends without a mark, and ends that more must follow
LONG = 12
_AGREES = re.compile(
    r"\b(?:(?:you(?:['\u2019]re|\s+are)|that(?:['\u2019]s|\s+is))\s+(?:right|correct)|I\s+agree)\b", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?]\s")
_MORE_FOLLOWS = re.compile(
    r"[.!?]\s+(?!(?:I\s+agree|yes|correct|right|that\s+is|that's)\b)(?:\S+\s+){2}\S", re.IGNORECASE
)
_UNFINISHED = re.compile(
    r"(?:[,:]|\b(?:of|is|was|are|were|in|the|an?|by|as|to|for|with|at|from|and|or|but|on|that|which))\s*\Z",
    re.IGNORECASE,
)

# A denial holds to the end of its clause: "It is not a play by Shakespeare, but a novel", "It's not Rome \u2014 it's Paris". The full
# stop of "U.S. state" ends none.
_DASH = r"\s[-\u2013]\s|\u2014"
_REST_OF_CLAUSE = rf"(?:(?!\b(?:but|because|though|although|yet|since|until)\b|{_DASH}|\.\s+(?:$|(?-i:[A-Z\"'*(]))|(?<=[a-z]{{3}})\.\s+[$\\\d])[^!?;:,\n])*$"
_DENIED = re.compile(
    r"(?:\b(?:not(?!\s+(?:only|just|merely|surprising|many|everyone|everybody|all|forget|overlook)\b)|never|neither|nor|rather than|instead of|(?<!none )other than|unlike|(?:unlike|contrary to)\s[^.!?;:,\n]{1,60},\s+(?:which|who|that)|"
    r"disagree(?: with)?|no (?:\w+ )?evidence|unlikely|rul(?:e|ed|ing) out|exclud(?:e|ed|ing)|eliminat(?:e|ed|ing)|(?:take|taking) back|no longer (?:think|believe|say)|(?:no|few) (?:\w+ )?(?:experts?|scholars?|historians?|scientists?|one|body) (?:\w+ )?(?:says?|believes?|thinks?|claims?)|"
    r"(?:theory|claim|rumou?r|legend) that|far from|scholars doubt|confus(?:e|ed|es|ing)|mix(?:ed|es|ing)? up|(?:mistaken|wrong|incorrect|mistake|error) (?:about|that|to (?:say|state|claim|answer)|(?:in|by|of) (?:say|stat|claim|answer)ing|when I said)|"
    r"(?:sorry|apologi[sz]e|apologies) for (?:say|stat|claim|answer)ing|(?:I|we) (?:\w+ )?doubt|hardly(?! surprising)|no way|anything but|(?<!one )(?<!none )(?<!nothing )except(?: for)?|mistakenly|wrongly|incorrectly|(?:misconception|myth|mistake|error)(?:(?: is)? that|(?=:))|(?:false|untrue) that|(?:wrong|incorrect|false) (?:answer|choice|guess) (?:is|was|would be))\b|"
    r"n['\u2019]t\b(?!\s+(?:forget|overlook|worry|hesitate|be\s+surprised)\b))" + _REST_OF_CLAUSE,
    re.IGNORECASE,
)
# "is definitely not", "has in fact never been"
_SURELY = r"(?:,?\s+(?:\w+ly|in\s+fact|also|still|just|therefore|indeed|however|of\s+course|quite|simply),?)*"
_WRONG = r"(?:(?:an?|the|also|\w+ly|indeed|common|just|simply)\s+)*(?:wrong|incorrect|false|mistaken|(?:mistake|misconception|myth|error)\b)"
_DENIED_AFTER = re.compile(
    rf"[\"'*_)\u201d\u2019]*(?:,\s(?!not\b|but\b)[^,.!?;\n]{{1,40}},)?(?:,\s+(?:is|was)\s+(?:{_WRONG}|not\s+(?:right|correct|true))|\s+(?:(?:is|was|are|were)(?:n['\u2019]t|{_SURELY}\s+(?:not|never|no\s+longer|unlikely|by\s+no\s+means|nowhere\s+near|far\s+from|{_WRONG}|(?:an?\s+)?(?:popular|common|frequent|tempting)\s+(?:wrong\s+)?(?:answer|guess|choice)))|can(?:not|['\u2019]t)\s+be|"
    rf"would\s+be\s+{_WRONG}|(?:is|was)\s+(?:excluded|ruled\s+out|too\s+\w+)|did(?:n['\u2019]t|\s+not(?!\s+(?:only|just)\b))(?![^.!?;\n]*\buntil\b)|(?:would|could|should|will)(?:n['\u2019]t|{_SURELY}\s+(?:not|never))\s+be|(?:has|have|had)(?:n['\u2019]t|{_SURELY}\s+(?:not|never))\s+been|seems\s+unlikely|(?:is|are|was|were)\s+no\s+\w+er\s+than)|,?\s+which\s+(?:is|was)\s+(?:{_WRONG}|not\s+(?:right|correct|true))|\?\s+(?:no|not|nope|never|hardly|wrong|(?:that|this)(?:['\u2019]s|\s+is)\s+(?:not|wrong|incorrect|false)|I\s+(?:doubt|do(?:n['\u2019]t|\s+not)\s+think)))\b",
    re.IGNORECASE,
)
_CROSSED = re.compile(
    r"(?:[\u274c\u2717\u2718]\s*|\b(?:incorrect|wrong|false)\s*:\s*|\bnot,\s+as\s+[^,.!?;\n]{1,30},\s+)[\"'*_(\u201c]*\Z",
    re.IGNORECASE,
)
# "Rome: incorrect", "Rome (wrong)", "Rome \u274c", "Rome, which isn't correct"
_MARKED_WRONG = re.compile(
    r"[\"'*_)\u201d\u2019]*(?:\s*(?::|\(|\s[-\u2013]\s)\s*(?:incorrect|wrong|false)\b|\s*[\u274c\u2717\u2718]|,\s+(?:which|that|this)\s*(?:is|was|['\u2019]s)?(?:n['\u2019]t|\s+not)?\s+"
    r"(?:(?<=n['\u2019]t\s)(?:right|correct|true)|(?<=not\s)(?:right|correct|true)|wrong|incorrect|false)\b)",
    re.IGNORECASE,
)
# What is denied as a whole: "The fact that Rome is famous doesn't make it the capital", "Rome is the capital. This is wrong."
_STATEMENT_DENIED_AFTER = re.compile(
    rf"(?:(?!\b(?:and|but|so|while|whereas)\b)[^.!?,;:\n]){{0,{_CONTEXT}}}(?:\s(?:does|did)(?:n['\u2019]t|\s+not)\s+(?:make|mean)\b|\s(?:is|was)\s+{_WRONG}\b|"
    r"[.!]\s+(?:this|that|it)(?:['\u2019]s|\s+is|\s+was)\s+(?:wrong|incorrect|false|not\s+(?:right|correct|true)))",
    re.IGNORECASE,
)
# The most common denials of other languages, without that of Spanish and Portuguese before a verb alone ("no").
_DENIED_ABROAD = re.compile(
    r"(?:\b(?:nicht|keine?[mnrs]?|pas|niet|no (?:es|son|era|fue)|n\u00e3o (?:\u00e9|era|foi)|non (?:\u00e8|era|sono)|\u043d\u0435|"
    r"\u0644\u064a\u0633\u062a?)\b|\u4e0d\u662f|\u4e26\u975e|\u5e76\u975e)"
    rf"(?:(?!\b(?:sondern|aber|mais|sino|pero|mas|ma|\u0430|\u043d\u043e|\u0628\u0644)\b|{_DASH}|\u800c\u662f)[^.!?;:,\n\u3001\u3002\uff0c\u060c])*$",
    re.IGNORECASE,
)
_DENIED_AFTER_ABROAD = re.compile(
    r"[\"'*_)\u201d\u2019\u300d]*(?:\u3067\u306f\u306a|\u3067\u306f\u3042\u308a\u307e\u305b\u3093|\u3058\u3083\u306a|[\uc774\uac00]? ?\uc544\ub2c8|"
    r"\s+ist\s+(?:nicht\s+(?:die|der|das)\b|falsch)|\s+(?:est\s+faux|n['\u2019]est\s+pas)|\s+(?:no\s+es|es\s+falso)\b)"
)
_CHINESE_DENIED_AFTER = re.compile(r"[\"'*_)\u201d\u2019]*(?:\u5e76|\u4e26)?\u4e0d\u662f")
_CONTRADICTED = re.compile(r"[\"'*_)\u201d\u2019]*,?\s+(?:but|however|though|yet)\b", re.IGNORECASE)
# The user's or others' words: "you said the capital is Rome".
_QUOTED = re.compile(
    rf"\b(?:you(?:['\u2019]ve|['\u2019]re| are| have| may(?: have)?| might(?: have)?| would| could)? (?:say|think|expect|(?:be )?thinking of|thought|suggest|mentioned|believed?|claim|guess(?:ed)?|proposed?|wrote)|"
    rf"(?:some|many|most|people|others|they)(?: people)? (?:(?:often|commonly|frequently|mistakenly|might|would) )?(?:say|think|believe|claim|assume|guess|answer|choose|pick|select)|used to (?:say|think|believe)|(?:was|is|been) (?:long|once|widely|often|sometimes|mistakenly|commonly|generally|previously) (?:believed|thought|assumed|held)|said|says|thinks|believes|told (?:you|me)|claims|claimed|claim that|suggests|suggested|"
    rf"answered|your (?:[\w'\u2019]+ )?(?:answer|guess|choice) (?:is|was))\b{_REST_OF_CLAUSE}|"
    r"(?:[\u60a8\u4f60]|\u4eba|\u4eba\u4eec)[^\u3002\uff01\uff1f\uff1b\uff0c,\n\u5f97]{0,6}(?:\u8ba4\u4e3a|\u8a8d\u70ba|\u4ee5\u4e3a|\u4ee5\u70ba|\u63d0\u5230)[^\u3002\uff01\uff1f\uff1b\uff0c,\n]*$",
    re.IGNORECASE,
)
# What the user, or people, are only said to think answers nothing, though it stands alone: "You're thinking of Rome", "Some people believe
# it is Rome". Who echoes the user agrees: "As you said".
_OTHERS_VIEW = re.compile(
    r"(?:(?<!\bas )(?<!\blike )\byou(?:['\u2019](?:ve|re)|\s+(?:have|are|may|might))*\s+(?:(?:would|could)\s+)?(?:say|said|think|thought|thinking\s+of|mentioned|"
    r"believed?|suggest(?:ed)?|guess(?:ed)?|assumed?|answered|chose|picked|mean|meant)\b|\b(?:some|many|most|few)\s+(?:of\s+them\s+|people\s+)?(?:\w+ly\s+)?(?:say|think|believe|claim|assume|guess|answer|pick|choose)\b|(?:mistake|error|wrong|incorrect)\s+to\s+(?:think|believe|assume|say|answer|claim|state)\b|"
    r"\b(?:idea|notion|claim|theory|belief)\s+that\b)"
    rf"{_REST_OF_CLAUSE}",
    re.IGNORECASE,
)
# The same clause says that no answer is given: "I'm not equipped to provide information about Rome".
_UNABLE = re.compile(
    r"(?:\b(?:unable to|not (?:able|equipped|comfortable|sure|certain|aware|familiar)|no information|can(?:not| not)|"
    r"(?:do|could) not (?:have|know|say|tell|answer))|\b(?:can|don|couldn)['\u2019]t (?:have|know|say|tell|answer|provide|help|"
    r"give|assist))\b[^.!?,;:\n]*$",
    re.IGNORECASE,
)
# ... or a later clause of the sentence does: "As an assistant for sports, I'm not able to provide information".
_UNABLE_AFTER = re.compile(
    r"(?:(?!\b(?:but|though|however)\b)[^.!?\n])*\bi(?:['\u2019]m| am)? (?:unable to|not (?:able|equipped|allowed|designed) to|(?:can(?:not|['\u2019]t)|"
    r"do(?: not|n['\u2019]t)) (?:provide|help|assist|answer|have (?:any )?information))\b|"
    r"(?:(?!\b(?:but|though|however)\b)[^.!?\n])*\bit(?: is|['\u2019]s) (?:not possible|impossible) to (?:provide|give|say|tell|answer)\b",
    re.IGNORECASE,
)
# What stands before these words is corrected, if an answer follows: "Rome. No, Paris."
_SECOND_THOUGHT = (
    r"(?:(?:no\s+)?(?:wait|sorry|correction|i meant?|i made a mistake|or rather|scratch that)|actually)\b"
)
_CORRECTION = re.compile(
    rf"[.!?;\n]\s{{0,3}}(?:{_SECOND_THOUGHT}[,:.!]?|no\b(?!\s+(?:matter|offen[cs]e|wonder|doubt|one|other|surprise|hard|need|longer|worries|problem)\b)[,:.!]?)|"
    rf",\s{{0,3}}(?:(?!actually,){_SECOND_THOUGHT}(?![.!])[,:]?|no\b[,:.!])|"  # not ", no Rome", which is Spanish for "not Rome"
    r"\b(?:but|however,?)\s+the\s+(?:correct|right|actual|real|true)\s+(?:answer|one)\b",
    re.IGNORECASE,
)
_BUT_IT_IS = re.compile(
    r"\bbut\b[^.!?;\n]*\b(?:it(?:['\u2019]s|\s+is)|(?:the|my)\s+answer\s+is)\s+(?:(?:actually|really|in\s+fact)\s+)?(?:(?:the|an?)\s+)?[\"'*_(\u201c\u2018]*$",
    re.IGNORECASE,
)
_USER_DENIES = re.compile(
    r"\byou(?:['\u2019]ve|\s+(?:have|may|might))?\s+(?:(?:do|did)(?:n['\u2019]t|\s+not)\s+)?(?:said|say|think|thought|believed?|claim(?:ed)?)\b[^.!?\n]*$",
    re.IGNORECASE,
)
_CONTRADICTED_LATER = re.compile(r"[^.!?\n]*(?:\b(?:but|however)\b|[.!?]\s+(?:but|however)\b)", re.IGNORECASE)
# "The novel by Rome was written by Smith" names Smith.
_BY = re.compile(r"\bby\s+$")
_BY_ANOTHER = re.compile(
    r"[^\n]*?\b(?:written|authored|composed|penned|attributed|credited)\s+(?:by|to)\s+[\"'*_(\u201c\u2018]*[A-Z]"
)
# What a concession names is not the answer: "While Rome is larger, the capital is Paris."
_CONCEDED = re.compile(
    r"\b(?:while|whereas|although|(?:even )?though|even if|despite|contrary to)\b[^.!?,;\n]*$|"
    r"\b(?:(?:incorrect|wrong|easy|tempting) to (?:think|say|believe|assume|suppose|mistake)|(?:people|many) (?:often |sometimes )?mistake|"
    r"the (?:notion|idea|claim|belief) that|(?:common|popular|widespread) (?:mistake|belief|misconception)|widely assumed)\b[^.!?,;\n]*$|"
    r"(?:\u867d\u7136|\u96d6\u7136|\u5c3d\u7ba1|\u5118\u7ba1)[^\u3002\uff01\uff1f\uff1b\uff0c,\n]*$",
    re.IGNORECASE,
)
# What comes later in the sentence may be the answer, too: "Cows make milk, while bees make honey".
_CONTRASTED = re.compile(
    r"(?:[\w'\u2019]+[^\w.!?;:\n]+){2}(?:while|whereas|although|(?:even )?though)\b[^.!?,;\n]*$", re.IGNORECASE
)
_ASKED = re.compile(
    r"(?:^|[.!?\n,]\s*)(?:(?:so|and|but|or)\s+)?(?:is|are|was|were|does|do you|(?:can|could|would) you|what|which|who|where|"
    r"why|how)\b[^.!?\n]*$",
    re.IGNORECASE,
)
# "Larger than Rome" says nothing of Rome, but "none other than Rome" does.
_COMPARED = re.compile(r"(?<!\bother)\s+than\s+(?:in\s+)?(?:the\s+|an?\s+)?[\"'*_(\u201c\u2018]*$", re.IGNORECASE)
# What explains a word that was given as the answer: "The opposite is "rich", which is a word for people who are not poor".
_EXPLAINED = re.compile(
    r"\b(?:is|was)\s+[\"\u201c][^\"\u201c\u201d\n]{1,80}[\"\u201d](?:\s+or\s+[\"\u201c][^\"\u201c\u201d\n]{1,80}[\"\u201d])?,?"
    r"(?:\s+which)?\s+(?:is|was)\s+an?\s+(?:\w+\s+)?(?:word|term|verb|noun|adjective|phrase)\b"
    r"(?:(?!\b(?:but|so|while|whereas|however|(?:answer|one|opposite|plural|tense|capital)\s+(?:is|was))\b|\b(?:is|was)\s+[\"\u201c])"
    r"[^.!?;:\n])*$",
    re.IGNORECASE,
)
# "In Rome, where is it?"
_ASKED_OF = re.compile(r",?\s+(?:where|what|who|which|when|how)\b[^.!?\n]*\?", re.IGNORECASE)
_ASKED_AFTER = re.compile(r"[^.!?\n]*\?")
# The user is not quoted, and nothing is conceded, but these words only say what else there is, or how it is called, too:
# "Mount Everest, also known as K2", "Switzerland, which borders Germany".
_OTHER_NAME_BESIDE = re.compile(
    r"\b(?:(?:also|formerly|previously|sometimes|otherwise)\s+(?:known|called|named|referred to|nicknamed)(?:\s+as)?|a\.?k\.?a\.?|"
    r"similar to|related to|differ(?:s|ent) from|confus(?:ed?|es|ing)(?: it| this| that)? with|mistaken for|compared (?:to|with)|opposed to|"
    r"confusing|followed by)\s+(?:the\s+|an?\s+)?(?-i:Mount\s+)?[\"'*_(\u201c\u2018]*$",
    re.IGNORECASE,
)
_NEAR = r"near|next to|close to|adjacent to"
_NAME_NEXT = r"\s+(?:the\s+|an?\s+)?[\"'*_(\u201c\u2018]*$"
_CLOSE_TO = re.compile(rf"\b(?:{_NEAR}){_NAME_NEXT}", re.IGNORECASE)
_BESIDE = re.compile(
    rf"\b(?:{_NEAR}|regarding|concerning|as for|(?<!was )(?<!were )(?:moved|emigrated|fled) to|(?:north|south|east|west)(?:ern)? of)"
    rf"{_NAME_NEXT}|\b(?:border(?:s|ed by|ing)|between|followed by)\b[^.!?;\n]*$",
    re.IGNORECASE,
)
# ... or what something is taken for, or was: "Sydney is often thought to be the capital", "Istanbul used to be the capital".
_TAKEN_FOR = re.compile(
    r"[\"'*_)\u201d\u2019]*,?\s+(?:(?:which|who)\s+)?(?:used\s+to\s+be|(?:is|was|are|were)\s+(?:once|formerly|previously|the\s+former)|"
    r"(?:is|was|are|were)\s+(?:(?:often|commonly|frequently|sometimes)\s+)?(?:mistaken\s+for|confused\s+with|mistakenly|wrongly)|"
    r"(?:is|was|are|were)\s+(?:often|commonly|frequently|sometimes)\s+(?:mistakenly\s+)?(?:thought|believed|assumed|called|known\s+as)|"
    r"(?:would|could|might)\s+(?:only\s+)?be\b[^.!?\n]{0,40}\sif|(?:(?:was|were|served|had\s+been)\b[^.!?;,\n]{0,40}\s)?until)\b",
    re.IGNORECASE,
)
# "Claim: the capital is Sydney", "the capital (which many take to be Sydney)"
_LABELLED = re.compile(r"\b(?:claim|myth|misconception)\s*:[^.!?;\n]*$", re.IGNORECASE)
_IN_BRACKETS, _BRACKET_ENDS = re.compile(r"\w[ \t]\((?=\w+\s)[^()\n]*$"), re.compile(r"[^()\n]{0,80}\)")
_NO = re.compile(r"\w[*_\"]*,\s+no\s+[\"'*_]*$")  # Spanish: "Es Paris, no Roma"
# "After summer comes autumn"
_AFTER = re.compile(r"(?:^|[.!?\n]\s*)(?:after|before)\s+(?:the\s+)?$", re.IGNORECASE)
# "If it had 8 sides, it would be an octagon"
_SUPPOSED = re.compile(r"\bif\s+(?:it|he|she|they|that|this|there)\s+(?:had|were|was)\b[^.!?;,\n]*$", re.IGNORECASE)
# "Change Rome to Paris in your notes"
_REPLACES = re.compile(
    r"\b(?:change|correct|replace|update|swap|edit|amend|fix)\s+(?:the\s+)?[\"'*_(\u201c\u2018]*$", re.IGNORECASE
)
_REPLACED = re.compile(r"[\"'*_)\u201d\u2019]*\s+(?:to|by|with|into)\s")
# "Until 1960 it was Rio de Janeiro", "The old capital was Rio de Janeiro"
_UNTIL = re.compile(r"\buntil\b[^.!?;,\n]*$", re.IGNORECASE)
_OLD = re.compile(
    r"\b(?:the|its|their)\s+(?:old|former|previous|earlier)\s+\w+\s+(?:is|was|were)\b[^.!?;,\n]*$", re.IGNORECASE
)
# ... or where something was before: "The capital was moved from Istanbul to Ankara".
_MOVED_FROM = re.compile(
    r"\b(?:moved|relocated|transferred|changed?|switch(?:ed)?)\b(?:(?!\bto\b)[^.!?;\n])*\bfrom\s+(?:the\s+)?[\"'*_(\u201c\u2018]*$",
    re.IGNORECASE,
)
_MOVED_TO = re.compile(r"[\"'*_)\u201d\u2019]*\s+to\s+\S")  # "change my answer from Rome to Paris"
# ... or where something is: "In Greece, he was born in Italy".
_SENTENCE_OPENING = re.compile(
    r"(?:^|[.!?\n]\s*)in\s+(?:(?!(?:they|people|you|we|it|he|she|one|is|are|was|were|has|have|had)\b)[\w.]+\s+){0,4}$",
    re.IGNORECASE,
)
# "West Virginia" does not name Virginia.
_OTHER_NAME = re.compile(
    r"\bNew\s+(?=[A-Z])|\b(?:North|South)\s+(?=Carolina|Dakota|Sudan)|\bWest\s+(?=Virginia)|\bEast\s+(?=Timor)|\bEquatorial\s+(?=Guinea)"
)
_OPERATOR = r"(?:[+*x\u00d7\u00f7/]|(?:times|plus|minus|divided by|multiplied by|added to)\b)"
_CALCULATION = r"\b(?:multiply(?:ing)?|divid(?:e|ing)|add(?:ing)?|subtract(?:ing)?|(?:sum|product|difference) of)"
_OPERATOR_BEFORE = re.compile(
    rf"(?:\d\s*(?:%\s*)?{_OPERATOR}|{_CALCULATION}(?:\s+\d[\d.,]{{0,20}}\s+(?:by|and|to|from|with))?)\s*$",
    re.IGNORECASE,
)
_OPERATOR_AFTER = re.compile(rf"\s*(?:%\s*)?(?:-|{_OPERATOR})\s*\d|(?:\s*%|(?<=%))\s+of\s+\d", re.IGNORECASE)
_MINUS_BEFORE, _EQUALS_AFTER = re.compile(r"\d\s*(?:%\s*)?[-\u2212\u2013]\s*$"), re.compile(r"\s*=")
# "42 is a number that is often confused with 10" gives no result.
_NUMBER_DESCRIBED = re.compile(
    r"\s+is\s+an?\s+(?:[\w-]{1,20}\s+){0,3}(?:number|integer|digit|multiple|factor|divisor|power)\b", re.IGNORECASE
)
_NUMBER = re.compile(r"-?\d[\d.,]*%?")
_RESULT = re.compile(
    r"(?:[=:]|\b(?:is|are|was|be|equals?|gives?|get|makes?|answer)\b|['\u2019]s)[\s\"'*_($\\]*$", re.IGNORECASE
)
# Where a reply says its final answer, after what leads to it
_FINAL = re.compile(
    r"\\boxed\s*\{|^[ \t]*####(?=\s*[-$]?\d)|\bfinal\s+answer\b(?=\W{0,5}(?:is|was)?\b\W{0,5}(?:\w|\$|$))(?!\W*[.!]\s)",
    re.IGNORECASE | re.MULTILINE,
)
_ANSWER = re.compile(
    r"(?:^|[.!?:]\s)\W{0,4}(?:(?:the|my)\s+(?:correct\s+)?)?answer\b(?!\s+(?:\W{0,2}\d|for|in|given|you|that|of)\b)",
    re.IGNORECASE | re.MULTILINE,
)
_SO = re.compile(r"(?:^|[.!?:]\s)\W{0,4}(?:so|therefore|thus|hence|finally)\b", re.IGNORECASE | re.MULTILINE)
# A calculation that a reply ends with, and its unit: "There are 60 minutes in an hour. 2 x 60 = 120 minutes."
_CALCULATED = re.compile(
    r"=\s*\S{0,3}-?\d[\d.,]*(?:[^\w.,:;!?=\n]{0,4}[^\W\d_]+(?:[^\w.,:;!?=\n]{1,4}[^\W\d_]+){0,9})?\W*\Z"
)
# What a conclusion does not say, but only what the user may have done, or what would be: "You may have calculated 16 x 6 = 96."
_SUPPOSED_END = re.compile(r"\b(?:you|your|if|would|instead|my|note|otherwise|not)\b|n?['\u2019][dt]\b", re.IGNORECASE)
# The numbers of steps
_LISTED = re.compile(r"^[ \t*_>#-]*(\d{1,2})[.)]\**\s", re.MULTILINE)
_STEP = re.compile(r"\bstep\s+(\d{1,2})\b", re.IGNORECASE)
_FUNCTION_WORD = re.compile(r"A|As|Am|An|At|Be|By|Do|He|I|If|In|Is|It|Me|My|No|Of|On|Or|So|To|Up|Us|We", re.IGNORECASE)
_GOES_ON = re.compile(
    r"['\u2019]\w|\s+(?!(?:is|was|and|or|because|which)\b)[a-z]|(?<=\bNo),|(?<=\b(?:In|At|By|On|Of|To))\s+[A-Z]"
)
# "The answer is problem", "The word 'reason'": what these words name comes after them.
_NAMING = re.compile(r"\b(?:the|this|that|your|my|correct|right|one)\s+$", re.IGNORECASE)
_NAMED = re.compile(
    r"(?:answer|question|word|term|name)(?=\s+(?:is|was|to|for|would|[\"'*(\u201c\u2018])|:)", re.IGNORECASE
)
_NEXT_WORD = re.compile(r"[ -](\w+)")
_ALTERNATIVE = re.compile(r"\bor\s+(?:(?:in|the|an?)\s+)*[\"'*(\u201c]*$", re.IGNORECASE)


def given(text: str, found: Iterable[re.Match[str]], elsewhere: Iterable[re.Match[str]] = ()) -> list[re.Match[str]]:
    """
    Returns the mentions (the answer is group 1) that are neither denied, corrected nor only quoted from the user. A quote, or what
    stands beside the answer, counts for nothing beside another answer `elsewhere`, in a clause that seems to be about something else:
    "You said Sydney. Canberra is the official capital."
    """
    own: list[re.Match[str]] = []
    weak: list[re.Match[str]] = []
    quoted: list[re.Match[str]] = []
    is_cut, does_agree = _is_cut(text), agrees(text)
    for match in found:
        before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
        if is_denied(text, match) or _gives_nothing(text, match, before) or _is_asked(text, match, before):
            continue
        if _BY.search(before) and _BY_ANOTHER.match(text, match.end(1), match.end(1) + 2 * _CONTEXT):
            continue
        if _OTHERS_VIEW.search(before) and not does_agree:
            continue
        if _is_beside(text, match, before):
            weak.append(match)
        elif not _is_conceded(before, is_cut) and not _QUOTED.search(before):
            own.append(match)
        elif not _CONTRADICTED.match(text, match.end(1)) and not (is_cut and _may_go_on(text, match, before)):
            # A quote of the user counts if the text names nothing else: "You said Rome, and you are right."
            weak.append(match)
            quoted.append(match)
    if not own:
        words = {match[1].lower() for match in weak}
        others = (of for of in elsewhere if of[1].lower() not in words and not is_denied(text, of))
        if any(not is_quoted(text, of.start(1)) for of in others):
            return [of for of in weak if of in quoted and does_agree]
        if not does_agree:  # "You said euro. The currency is the pound", whatever the pound's name is in the key
            weak = [
                of
                for of in weak
                if of not in quoted or not _MORE_FOLLOWS.search(text, of.end(1), of.end(1) + 3 * _CONTEXT)
            ]
        return [of for of in weak if not _CLOSE_TO.search(text, max(of.start(1) - _CONTEXT, 0), of.start(1))]
    return _not_corrected(text, own)


def standing(text: str, found: Iterable[re.Match[str]]) -> list[re.Match[str]]:
    """
    Returns the mentions that no words take back: neither denied, corrected, asked about, nor conceded, and not what the user or others
    say. What stands beside the answer ("near Rome") may be the answer, too.
    """
    is_cut = _is_cut(text)

    def is_taken_back(match: re.Match[str]) -> bool:
        before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
        return (
            is_denied(text, match)
            or _gives_nothing(text, match, before)
            or _is_asked(text, match, before)
            or _is_conceded(before, is_cut)
            or _QUOTED.search(before) is not None
            or _TAKEN_FOR.match(text, match.end(1)) is not None
            or any(pattern.search(before) for pattern in (_LABELLED, _OTHER_NAME_BESIDE, _OLD, _MOVED_FROM, _NO))
            or (_IN_BRACKETS.search(before) is not None and _BRACKET_ENDS.match(text, match.end(1)) is not None)
            or (_REPLACES.search(before) is not None and _REPLACED.match(text, match.end(1)) is not None)
        )

    return _not_corrected(text, [match for match in found if not is_taken_back(match)])


def _not_corrected(text: str, found: list[re.Match[str]]) -> list[re.Match[str]]:
    """Returns the mentions that are not corrected by what follows: "Rome. No, Paris." """
    if not found:
        return []
    corrections = [match.end() for match in _CORRECTION.finditer(text, 0, found[-1].start(1))]
    corrections += [
        match.start(1) for match in found if _BUT_IT_IS.search(text, max(match.start(1) - _CONTEXT, 0), match.start(1))
    ]
    corrected = max(corrections, default=0)
    return [match for match in found if match.start(1) >= corrected]


def _is_conceded(before: str, is_cut: bool = False) -> bool:
    """Returns whether what comes before a mention concedes it. What comes later in its sentence does not, unless the text is cut."""
    return bool(_CONCEDED.search(before)) and (is_cut or not _CONTRASTED.search(before))


def _may_go_on(text: str, match: re.Match[str], before: str) -> bool:
    """Returns whether what a cut text would have said of a mention may be missing: of a quote, or of a concession in its last sentence."""
    return _QUOTED.search(before) is not None or not _SENTENCE_END.search(text, match.end(1))


def _is_cut(text: str) -> bool:
    """Returns whether the limit of tokens seems to have cut a reply: what it would have said of the user's answer is missing."""
    if _AGREES.search(text):  # It has said so already.
        return False
    if _UNFINISHED.search(text):
        return True
    return text.rstrip()[-1:].isalnum() and len(text.split()) >= LONG


def is_denied(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mention (the answer is group 1) is denied: "not Rome", "Rome is wrong"."""
    before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
    if any(pattern.match(text, match.end(1)) for pattern in (_DENIED_AFTER, _MARKED_WRONG, _STATEMENT_DENIED_AFTER)):
        return True
    if _DENIED.search(before) or _CROSSED.search(before):
        return True
    return is_denied_abroad(text, match)


def is_denied_abroad(text: str, match: re.Match[str], near: bool = False) -> bool:
    """Returns whether a mention is denied in another language; with `near`, right before it: "nicht Rom", not "Rom ist nicht gro\u00df"."""
    before = text[max(match.start(1) - (_NEAR_DENIAL if near else _CONTEXT), 0) : match.start(1)]
    if _CHINESE_DENIED_AFTER.match(text, match.end(1)) and not before.endswith("\u662f"):
        return True  # not in "it is Rome, not Paris" without its comma
    if _DENIED_ABROAD.search(before) or _NO.search(before):
        return True
    return not near and _DENIED_AFTER_ABROAD.match(text, match.end(1)) is not None


def _is_beside(text: str, match: re.Match[str], before: str) -> bool:
    """Returns whether a mention is another name, a place, or what is only taken for the answer, or was it."""
    if any(
        pattern.search(before)
        for pattern in (_OTHER_NAME_BESIDE, _BESIDE, _UNTIL, _OLD, _MOVED_FROM, _LABELLED, _AFTER)
    ):
        return True
    if _REPLACES.search(before) and _REPLACED.match(text, match.end(1)):
        return True
    if _TAKEN_FOR.match(text, match.end(1)) or (
        _IN_BRACKETS.search(before) and _BRACKET_ENDS.match(text, match.end(1))
    ):
        return True
    return bool(_SENTENCE_OPENING.search(before)) and text.startswith(",", match.end(1))


def _gives_nothing(text: str, match: re.Match[str], before: str) -> bool:
    """Returns whether a mention is compared with, explains the answer, or its sentence says that it answers nothing."""
    if _MOVED_FROM.search(before) and _MOVED_TO.match(text, match.end(1)):
        return True
    if _COMPARED.search(before) or _UNABLE.search(before) or _SUPPOSED.search(before):
        return True
    if _EXPLAINED.search(text, max(match.start(1) - 3 * _CONTEXT, 0), match.start(1)):
        return True
    return bool(_UNABLE_AFTER.match(text, match.end(1), match.end(1) + _CONTEXT))


def _is_asked(text: str, match: re.Match[str], before: str) -> bool:
    """Returns whether a mention is part of a question: "Is it Rome?" """
    if _ASKED_OF.match(text, match.end(1), match.end(1) + _CONTEXT):
        return True
    return bool(_ASKED.search(before) and _ASKED_AFTER.match(text, match.end(1), match.end(1) + _CONTEXT))


def last_asked(question: str) -> str:
    """Returns the words of a question's last sentence, in lower case. What stands before it is a text that may answer it."""
    return _in_words(_SENTENCE_END.split(question[: question.rfind("?") + 1] or question)[-1])


def is_echo(text: str, match: re.Match[str], asked: str) -> bool:
    """
    Returns whether a mention only repeats words of the question, with the word after it: "rain" in "A rain gauge measures". A name of which
    the question has the last word alone repeats nothing: "The Indian Ocean lies", of which ocean lies there.
    """
    after = _NEXT_WORD.match(text, match.end(1))
    return after is not None and f" {_in_words(f'{match[1]} {after[1]}')} " in f" {asked} "


def _in_words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def is_alternative(text: str, start: int) -> bool:
    """Returns whether an "or" comes before what starts here."""
    return bool(_ALTERNATIVE.search(text, max(start - _CONTEXT, 0), start))


def without_operands(text: str, found: Iterable[re.Match[str]], own: Collection[str] = ()) -> Iterator[re.Match[str]]:
    """
    Yields the mentions that are no numbers to calculate with: 35 alone in "5 times 7 is 35". After such a calculation, its
    numbers count as a result alone: none in "Let us multiply 41 by 8. 41". Those of the row's `own` answers count anyway. What a number is described
    as gives no result.
    """
    operands: set[str] = set()
    for match in found:
        before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
        if not _NUMBER.fullmatch(match[1]):
            yield match
        elif _is_operand(before, text, match.end(1)):
            operands.add(match[1])
        elif not _NUMBER_DESCRIBED.match(text, match.end(1)) and (
            match[1] not in operands or match[1] in own or _RESULT.search(before)
        ):
            yield match


def _is_operand(before: str, text: str, end: int) -> bool:
    is_subtracted = _MINUS_BEFORE.search(before) and _EQUALS_AFTER.match(text, end)  # "10 - 3 = 7"
    return bool(_OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(text, end) or is_subtracted)


def conclusions(text: str, is_number: bool) -> Iterator[str]:
    """
    Yields the end of a reply from where it says that its final answer comes: "\\boxed{18}", "#### 18". Of one whose answer is a
    number, also from "The answer is" and "So", and from the end of a last calculation, since numbers on the way there may be possible
    answers, too.
    """
    numbers = {of[0].rstrip(".,") for of in _NUMBER.finditer(text)} if text[-1:].isdigit() else set()
    last = max((of for of in numbers if text.endswith(of)), key=len, default="")
    # "8 times 8 is 64. So it is 6": the limit of tokens cut the last number
    is_cut = any(of.startswith(last) for of in numbers - {last})
    for pattern in (_FINAL, _ANSWER, _SO, _CALCULATED) if is_number and not is_cut else (_FINAL,):
        found = list(pattern.finditer(text))
        if not found:
            continue
        if pattern in (_SO, _CALCULATED) and _SUPPOSED_END.search(text, _sentence_start(text, found[-1].start())):
            continue
        yield text[found[-1].start() :]


def _sentence_start(text: str, end: int) -> int:
    return max(
        (of.end() for of in _SENTENCE_END.finditer(text, max(end - 3 * _CONTEXT, 0), end)),
        default=max(end - 3 * _CONTEXT, 0),
    )


def agrees(text: str) -> bool:
    """Returns whether a text says that the user is right."""
    return _AGREES.search(text) is not None


def is_quoted(text: str, start: int) -> bool:
    """Returns whether what starts here is what the user or others said: "You said the answer is no"."""
    return bool(_QUOTED.search(text[max(start - _CONTEXT, 0) : start]))


def is_taken_up(text: str, match: re.Match[str]) -> bool:
    """Returns whether a denial is the user's, or is contradicted: "You don't believe it's Rome", "It may not be Rome, but it is"."""
    before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
    users = _USER_DENIES.search(before) is not None and not _AGREES.search(text)
    return users or _CONTRADICTED_LATER.match(text, match.end(1), match.end(1) + _CONTEXT) is not None


def is_conceded(text: str, start: int) -> bool:
    """Returns whether what starts here is only conceded: "While a scan (C) helps, the heart comes first"."""
    return _is_conceded(text[max(start - _CONTEXT, 0) : start])


def step_numbers(text: str) -> set[int]:
    """Returns where the numbers of steps stand: of a list that goes on from 1 to 2, and after "Step"."""
    listed = list(_LISTED.finditer(text))
    numbers = [match[1] for match in listed]
    are_steps = ("1", "2") in pairwise(numbers)
    return {match.start(1) for match in (*(listed if are_steps else ()), *_STEP.finditer(text))}


def is_function_word(text: str, match: re.Match[str]) -> bool:
    """Returns whether an answer stands as a word of the sentence: "As a guide, I'm new" names neither As nor I."""
    if match[1][0].isupper() and any(
        of.end() == match.start(1)
        for of in _OTHER_NAME.finditer(text, max(match.start(1) - _CONTEXT, 0), match.end(1))
    ):
        return True
    is_name = len(match[1]) > 1 and match[1].isupper() and not text.isupper()  # "US"
    if _FUNCTION_WORD.fullmatch(match[1]) and not is_name:
        return bool(_GOES_ON.match(text, match.end(1)))
    before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
    return bool(_NAMED.match(text, match.start(1)) and _NAMING.search(before))
