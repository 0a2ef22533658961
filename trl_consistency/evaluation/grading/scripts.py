"""The edges of names in Chinese, Japanese and Korean, where no space separates a name from what it is a part of."""

import re


_HAN = r"\u3005\u3400-\u9fff\uf900-\ufaff"
_KATAKANA = r"\u30a1-\u30fa\u30fc-\u30fe"
_HANGUL = r"\uac00-\ud7af"
# East, west, south, north and new make another name of the one after them (京都 in 東京都), unless they end a name themselves
# (湖南 in 湖南长沙).
_COMPASS = r"\u6771\u4e1c\u897f\u5357\u5317"
_ENDS_A_NAME = r"\u6e56\u6cb3\u5c71\u6c5f\u5e7f\u5ee3\u9655\u965d\u4e91\u96f2\u6d77\u53f0\u81fa\u8d8a\u5df4"
_NOT_RENAMED = rf"(?:(?<![{_COMPASS}\u65b0])|(?<=[{_ENDS_A_NAME}][{_COMPASS}]))"
# What Korean writes right after a noun: particles, the copula, and words for cities.
_PARTICLE = (
    r"[\uc740\ub294\uc774\uac00\uc744\ub97c\uc758\uc5d0\uc640\uacfc\ub3c4\ub85c\uc73c\ub9cc\uc785\ub2e4\uc600\ub77c\ub791\ub098"
    r"\uc57c\uc694\uc77c\ubd80\uae4c\ubcf4\ucc98\ud55c\uaed8\uc2dc\ubc0f\ub4f1\ubfd0\uc870\ub9c8\ubc16\ud2b9]"
)


def edged(name: str, pattern: str) -> str:
    """
    Returns a regular expression of a name that is no part of a longer one: インド is not in インドネシア, nor 인도 in 인도네시아,
    nor 京都 in 東京都, nor 水 in 水星. Names in other scripts have their edges elsewhere.
    """
    first, last, before, after = name[:1], name[-1:], "", ""
    if re.match(f"[{_KATAKANA}]", first):
        before = f"(?<![{_KATAKANA}])"
    elif re.match(f"[{_HAN}]", first):
        before = _NOT_RENAMED
    if re.match(f"[{_KATAKANA}]", last):
        after = f"(?![{_KATAKANA}])"
    elif len(name) == 1 and re.match(f"[{_HAN}]", name):
        after = f"(?![{_HAN}])"
    elif re.match(f"[{_HANGUL}]", last):
        after = f"(?!(?!{_PARTICLE})[{_HANGUL}])"
    return f"{before}{pattern}{after}"
