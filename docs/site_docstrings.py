"""TRL's docstring format as Google's, which mkdocstrings reads."""

import re

import griffe


# `name (`str` or [`~trl.X`], *optional*, defaults to `None`):`
PARAMETER = re.compile(r"^(?P<indent> +)(?P<name>\*{0,2}\w+(?:, \w+)*) \((?P<kind>.+)\):$", re.MULTILINE)
# A section whose items are `` `type`: text ``, which may go on in lines that are not indented further
ITEMS = re.compile(r"^(?P<title>Returns|Yields|Raises):\n(?P<items>(?: +.*\n?)+)", re.MULTILINE)


def plain_reference(text: str) -> str:
    """``[`~trl.SFTConfig`]`` as `` `SFTConfig` ``."""
    text = re.sub(r"\[`~(?:[\w.]+\.)?(\w+)`\](?!\()", r"`\1`", text)
    return re.sub(r"\[`([\w.]+)`\](?!\()", r"`\1`", text)


def google_parameter(match: re.Match) -> str:
    kind = re.sub(r", \*optional\*.*$", "", match["kind"])
    kind = re.sub(r"(?<=[`\]]), (?=[`\[])", " or ", kind).replace("`", "")  # griffe reads a list of types as a tuple
    return f"{match['indent']}{match['name']} ({kind}):"


def google_items(match: re.Match) -> str:
    """Each item as `type: text`, without the marks of code that would be shown, and with further lines indented."""
    lines = []
    for line in match["items"].splitlines():
        if item := re.match(r" +(?P<kind>`[^`]+`(?: or `[^`]+`)*): (?P<text>.*)", line):
            lines.append(f"    {item['kind'].replace('`', '')}: {item['text']}")
        else:
            lines.append(f"        {line.strip()}")
    return f"{match['title']}:\n" + "\n".join(lines) + "\n"


def tidy(text: str) -> str:
    text = plain_reference(text)
    text = re.sub(r"^ +> Parameters .*\n\n?", "", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)> \[!(\w+)\]$", r"\1> **\2**\n\1>", text, flags=re.MULTILINE)
    text = re.sub(r"^( *>) ([^-\n].*)\n(?= *> - )", r"\1 \2\n\1\n", text, flags=re.MULTILINE)
    return ITEMS.sub(google_items, PARAMETER.sub(google_parameter, text))


class TrlDocstrings(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs) -> None:
        """The default of an option, of `option(default, allowed, ...)`."""
        if isinstance(attr.value, griffe.ExprCall) and str(attr.value.function) == "option":
            attr.value = attr.value.arguments[0]

    def on_instance(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring:
            obj.docstring.value = tidy(obj.docstring.value)
