"""Quantities with a unit, which have many forms: "5 km" and "five kilometers", "$20" and "20 dollars"."""

import re


OF_NUMBER = re.compile(r"[-$\u20ac\u00a3]?\d")  # what an answer that is a number begins with
_METER, _GRAM, _LITER = r"met(?:er|re)s?", r"gram(?:me)?s?", r"lit(?:er|re)s?"
_PER_SECOND = r"(?:\s?/\s?s(?:ec)?|\s(?:per|a)\ssecond)"
_PER_HOUR = r"(?:\s?/\s?h(?:r|our)?|\s(?:per|an)\shour)"
# Each unit in its short form, and its other forms
_UNITS = {
    **{
        f"{unit}^{power}": rf"{unit}{power}|{short}\.? {unit}|{words} (?:{unit}|{name})"
        for power, short, words in ((2, "sq", "square"), (3, "cu", "cubic"))
        for unit, name in (
            ("km", f"kilo{_METER}"),
            ("cm", f"centi{_METER}"),
            ("mm", f"milli{_METER}"),
            ("m", _METER),
            ("ft", "feet|foot"),
            ("in", "inch(?:es)?"),
            ("mi", "miles?"),
        )
    },
    "km/h": rf"(?:km|kilo{_METER}){_PER_HOUR}|kph|kmh",
    "mph": rf"(?:mi|miles?){_PER_HOUR}",
    "km/s": rf"(?:km|kilo{_METER}){_PER_SECOND}",
    "m/s": rf"(?:m|{_METER}){_PER_SECOND}",
    "km": rf"kilo{_METER}",
    "cm": rf"centi{_METER}",
    "mm": rf"milli{_METER}",
    "m": _METER,
    "kg": rf"kilo{_GRAM}|kilos?",
    "mg": rf"milli{_GRAM}",
    "g": _GRAM,
    "ml": rf"mL|milli{_LITER}",
    "l": rf"L|{_LITER}",
    "mi": "miles?",
    "ft": "foot|feet",
    "lb": "lbs|pounds?",
    "oz": "ounces?",
    "h": "hours?|hrs?",
    "min": "minutes?|mins",
    "s": "seconds?|secs?",
    "KB": "kB|kilobytes?",
    "MB": "megabytes?",
    "GB": "gigabytes?",
    "TB": "terabytes?",
    "kWh": "kilowatt[ -]hours?",
    "V": "volts?",
    "W": "watts?",
    "J": "joules?",
    "N": "newtons?",
    "Hz": "hertz",
}
_OF_UNIT = {unit: re.compile(f"{re.escape(unit)}|{forms}") for unit, forms in _UNITS.items()}
# Money has its sign before the number, after it, or in words.
_CURRENCIES = {
    "$": ("US ?[$]|USD ?", "US ?[$]|[$]|(?:U[.]?S[.]? )?dollars?|USD|bucks"),
    "\u20ac": ("EUR ?", "\u20ac|euros?|EUR"),
    "\u00a3": ("GBP ?", "\u00a3|pounds?(?: sterling)?|GBP"),
    "\u00a5": ("JPY ?", "\u00a5|yen|JPY"),
    "\u20b9": ("INR ?|Rs[.]? ?", "\u20b9|rupees?|INR"),
}
# All that amounts are measured in, and an amount of it
_MEASURES = (
    _OF_UNIT
    | {sign: re.compile(after) for sign, (_, after) in _CURRENCIES.items()}
    | {
        of: re.compile(f"{of}s?")
        for of in (
            "day",
            "week",
            "month",
            "year",
            "decade",
            "fortnight",
            "dozen",
            "yard",
            "quart",
            "gallon",
            "pint",
            "cup",
            "teaspoon",
            "tablespoon",
            "stone",
            "acre",
            "ton",
        )
    }
    | {
        "inch": re.compile("inch(?:es)?"),
        "century": re.compile("centur(?:y|ies)"),
        "cent": re.compile("cents?|\u00a2|pence"),
        "\u00b0C": re.compile("\u00b0 ?C|degrees? (?:C|Celsius|centigrade)"),
        "\u00b0F": re.compile("\u00b0 ?F|degrees? (?:F|Fahrenheit)"),
        "K": re.compile("K|kelvins?"),
        "o'clock": re.compile("o'clock|[ap]\\.?m\\.?", re.IGNORECASE),
    }
)
_MEASURED = re.compile(
    rf"((?<!\d)\d++(?:\.\d++)?|\b(?i:an?|one))[\s-]?({'|'.join(of.pattern for of in _MEASURES.values())})(?![\w/^]|\sper\b)"
)
_WITH_SIGN = re.compile(rf"([{''.join(_CURRENCIES)}])\s?(\d+(?:\.\d+)?)")
_CLOCK = re.compile(r"(?<![\d:])(\d{1,2}:\d\d)(?![\d:])")
_AMOUNT = r"(-?\d[\d.]*)"
_QUANTITY = re.compile(rf"{_AMOUNT}[\s-]?([^\d\s].*)")
_MONEY = {
    sign: re.compile(rf"(?:{re.escape(sign)}|{before})\s?{_AMOUNT}|{_AMOUNT}\s?(?:{after})")
    for sign, (before, after) in _CURRENCIES.items()
}


def short_form(words: str) -> str:
    """Returns a quantity with its unit in short form, "5 km" for "5 kilometers" and "$20" for "20 dollars"; other words as they are."""
    if (found := _QUANTITY.fullmatch(words)) and (unit := _unit(found[2])):
        return f"{found[1]} {unit}"
    for sign, pattern in _MONEY.items():
        if found := pattern.fullmatch(words):
            return f"{sign}{found[1] or found[2]}"
    return words


def quantity_pattern(words: str) -> str | None:
    """Returns a regular expression of the forms of a quantity in its short form, None for other words."""
    if (sign := words[:1]) in _CURRENCIES and re.fullmatch(_AMOUNT, words[1:]):
        before, after = _CURRENCIES[sign]
        amount = re.escape(words[1:])
        # "$20 dollars" is one amount.
        return rf"(?:(?:{re.escape(sign)}|{before})\s?{amount}(?:[\s-]?(?:{after}))?|{amount}[\s-]?(?:{after}))"
    found = _QUANTITY.fullmatch(words)
    if found is None or found[2] not in _UNITS:
        return None
    return rf"{re.escape(found[1])}[\s-]?(?:{re.escape(found[2])}|{_UNITS[found[2]]})"


def amounts_of(text: str) -> set[tuple[str, str | None]]:
    """Returns the amounts in a text, each with what it is measured in: 26.2 miles."""
    measured = [
        (number if number[0].isdigit() else "1", _measure(f"1 {unit}")) for number, unit in _MEASURED.findall(text)
    ]
    measured += [(number, sign) for sign, number in _WITH_SIGN.findall(text)]
    measured += [(time, _measure(time)) for time in _CLOCK.findall(text)]
    return set(measured)


def measure_of(words: str) -> str | None:
    """Returns what a quantity is measured in, None for other words."""
    return _measure(short_form(words))


def _measure(words: str) -> str | None:
    """Returns what a quantity is measured in: a unit, or a currency."""
    if words[:1] in _CURRENCIES:
        return words[0]
    if _CLOCK.fullmatch(words):
        return "clock"
    found = _QUANTITY.fullmatch(words)
    return next((unit for unit, forms in _MEASURES.items() if found and forms.fullmatch(found[2])), None)


def amount_of(words: str) -> str:
    """Returns the number of a quantity in its short form, which all its forms have, or the words as they are."""
    found = re.search(_AMOUNT, words)
    return words if found is None or quantity_pattern(words) is None else found[1]


def _unit(words: str) -> str | None:
    return next((unit for unit, forms in _OF_UNIT.items() if forms.fullmatch(words)), None)
