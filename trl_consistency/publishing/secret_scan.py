"""Chooses the files to publish, and finds what must not be: secrets, local paths, training rows, pickles."""

import json
import re
import struct
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from huggingface_hub import get_token

from ..data.folders import TRAINED_PAIRS
from ..errors import ConsistencyError
from ..folder_lock import LOCK
from .results import RESULTS_FILE


# Vocabulary files. Tokens look like paths, so only this folder's path counts there.
VOCABULARY = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
SENT = (
    *("*.safetensors", "*.safetensors.index.json", "adapter_config.json", "config.json", "generation_config.json"),
    *VOCABULARY,
    *("tokenizer_config.json", "special_tokens_map.json", "*.model", "processor_config.json"),
    *("preprocessor_config.json", "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
    *("README.md", "LICENSE*", "NOTICE*", RESULTS_FILE, "*.png", "*.svg"),
)
BINARY = (".png", ".model", ".parquet", ".arrow")
ESCAPED = (".json", ".jsonl", ".ipynb", ".safetensors")  # JSON, and the header of weights
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
ROWS = (".jsonl", ".csv", ".parquet", ".arrow")
ROW_FOLDERS = ("_targets", "completions", "data")

SECRETS = {
    "a Hugging Face token": rb"(?<![A-Za-z0-9])(?:(?:hf_|api_org_)[A-Za-z0-9]{20,}|hf_(?:oauth|jwt)_eyJ[\w.-]{20,})",
    "an API key (sk-…)": rb"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]{20,}",
    "a Google API key": rb"(?<![A-Za-z0-9_-])AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])",
    "a Google token": rb"(?<![A-Za-z0-9])(?:ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}|1//0[A-Za-z0-9_-]{30,})",
    "a Slack token": rb"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{10,}|(?<![A-Za-z0-9])xapp-\d-[A-Za-z0-9-]{10,}",
    "a Slack webhook": rb"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,}",
    "a GitLab token": rb"(?<![A-Za-z0-9])gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt|oas)-[A-Za-z0-9_-]{20,}",
    "a Groq key": rb"(?<![A-Za-z0-9])gsk_[A-Za-z0-9]{20,}",
    "an NVIDIA key": rb"(?<![A-Za-z0-9])nvapi-[A-Za-z0-9_-]{20,}",
    "an npm token": rb"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])|_authToken\s*=\s*[\w-]{8,}",
    "a Stripe key": rb"(?<![A-Za-z0-9])(?:[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9]{24,})",
    "a Weights & Biases key": rb"(?<![A-Za-z0-9])wandb_v1_[A-Za-z0-9_]{40,}"
    rb"|wandb(?: login(?:[^\n\v]|(?<=\\)[\n\v]){1,60}?|\.login\((?:[^()]|\([^()]{0,60}\)){0,60}?)(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])"
    rb"|(?i:wandb(?:\W{1,8}|_)key)\W{1,6}[0-9a-f]{40}(?![0-9a-f])",
    "an xAI key": rb"(?<![A-Za-z0-9])xai-[A-Za-z0-9]{40,}",
    "a Replicate token": rb"(?<![A-Za-z0-9])r8_[A-Za-z0-9]{37}(?![A-Za-z0-9])",
    "a PyPI token": rb"(?<![A-Za-z0-9])pypi-AgEI[A-Za-z0-9_-]{20,}",
    "a SendGrid key": rb"(?<![A-Za-z0-9])SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{20,}",
    "a Databricks token": rb"(?<![A-Za-z0-9])dapi[0-9a-f]{32}(?![0-9a-z])",
    "a Fireworks key": rb"(?<![A-Za-z0-9])fw_[A-Za-z0-9]{20,}",
    "a Discord webhook": rb"discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d+/[\w-]{20,}",
    "a Telegram token": rb"(?:\bbot|(?<![A-Za-z0-9]))\d{8,10}:AA[\w-]{33}(?![\w-])",
    "a Docker token": rb"(?<![A-Za-z0-9])dckr_[op]at_[A-Za-z0-9_-]{20,}|\"auth\"\s*:\s*\"[A-Za-z0-9+/]{16,}={0,2}\"",
    "a Kaggle key": rb"\"username\"\s*:\s*\"[^\"\n]*\"\s*,\s*\"key\"\s*:\s*\"[0-9a-f]{32}\""
    rb"|\"key\"\s*:\s*\"[0-9a-f]{32}\"\s*,\s*\"username\"\s*:|(?<![A-Za-z0-9])KGAT_[0-9a-fA-F]{32}(?![0-9A-Za-z])",
    "a RunPod key": rb"(?<![A-Za-z0-9])rpa_[A-Za-z0-9]{20,}",
    "a LangSmith key": rb"(?<![A-Za-z0-9])lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}",
    "a Perplexity key": rb"(?<![A-Za-z0-9])pplx-[A-Za-z0-9]{30,}",
    "a Together key": rb"(?<![A-Za-z0-9])tgp_v1_[A-Za-z0-9_-]{40,}",
    "a Modal token": rb"(?<![A-Za-z0-9_-])a[ks]-[A-Za-z0-9]{22}(?![A-Za-z0-9_-])",
    "a Jina key": rb"(?<![A-Za-z0-9])jina_[A-Za-z0-9_-]{40,}",
    "a Tavily key": rb"(?<![A-Za-z0-9])tvly-[A-Za-z0-9_-]{20,}",
    "a DigitalOcean token": rb"(?<![A-Za-z0-9])do[opr]_v1_[0-9a-f]{64}",
    "a Vault token": rb"(?<![A-Za-z0-9])hv[sbr]\.[A-Za-z0-9_-]{24,}",
    "a Tailscale key": rb"(?<![A-Za-z0-9])tskey-[a-z]+-[A-Za-z0-9]{8,}-[A-Za-z0-9]{20,}",
    "a JSON Web Token": rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    "an address with a password": rb"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@\"'`<>]*:[^\s/@\"'`<>]+@[^\s/@\"'`<>]+"
    rb"|https?://(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{20,}@[^\s/@\"'`<>]+",
    "an AWS key": rb"(?<![A-Z0-9])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])|(?i:aws_secret_access_key)\W{1,6}[\w/+=]{20,}",
    "a GitHub token": rb"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22,})",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d:",
    "an Azure signature": rb"[?&;]sig=[A-Za-z0-9%+/]{40,}",
    "a token": rb"(?i)(?:HF_TOKEN|HUGGING_?FACE_HUB_TOKEN|hub_token|WANDB_API_KEY|OPENAI_API_KEY)"
    rb"(?:[\"'`]?\s*[=:]\s*[\"'`]?|[\"']\]\s*=\s*[\"'])[\w-]{8,}",
}
# A name of secrets, also at the end of a longer one (MISTRAL_API_KEY, --api-key, mistralApiKey)
_NAMES = (
    rb"(?:api[ _-]?keys?|(?:secret|access|private|account|storage)[ _-]?keys?|(?:access|auth|api|bearer|secret)[ _-]?tokens?"
    rb"|client[ _-]?secrets?|bearer|authorization[\"'`]?[:=]\s?[\"'`]?basic|passwords?|passwd|passphrase|(?-i:_PASS|_PWD))"
)
# What stands between a name and a value: `["name"] = "`, and where much else may follow, `("name", "`, `| name | ` and `name -> `
_INTO = rb"[\"']\]\s{0,2}=\s{0,2}[\"']"
_BESIDE = rb"(?:[\"']\s{0,2},\s{0,2}[\"']|[`*]{0,3}[ \t]{0,40}\|[ \t]{0,2}[`*]{0,3}|[\"'`]?\s{0,2}[=-]>\s{0,2}[\"'`]?)"
# The value is a word of at least eight characters with a letter and a digit, and beside its name one of 16 without hyphens.
_NAMED = _NAMES + (
    rb"(?:(?:(?: (?:is|was|of|for)\b)?[\"'`*>]{0,3}\s{0,2}(?::?=|:(?:\s?[>|][+-]?\s{1,12})?)?\*{0,3}(?:\s|</?\w{1,8}>){0,3}[\"'`*]{0,3}|"
    + _INTO
    + rb")"
    rb"(?=[\w+/=.!@#$%^&-]*\d)(?=[\d+/=.!@#$%^&_-]*[A-Za-z])[\w+/=!@#$%^&-]{8,}"
    rb"|" + _BESIDE + rb"(?=[\w+/=]*\d)(?=[\d+/=_]*[A-Za-z])[\w+/=]{16,})"
)
# After `token=`, `secret=` and `…_KEY=` alone, at least 20 letters and digits
_NAMED_LONG = (
    rb"(?:token|secret|(?-i:_KEY)|(?<=[?&])key)(?:[\"'`]?\s{0,2}[:=]\s{0,2}[\"'`]?|" + _INTO + rb")"
    rb"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{20,}"
)
_OF_CURL = (
    rb"curl\b[^\n\v]{0,80}?\s(?:-u|--user)[ =]?[\"']?[\w.@+-]+:"
    rb"(?=[\w+/=.!@#%^&-]*\d)(?=[\d+/=.!@#%^&_-]*[A-Za-z])[\w+/=.!@#%^&-]{8,}"
)
# Flags that stand before a token or a password
_OF_FLAGS = (
    rb"(?:--(?:hub|hf)?[_-]?token(?:[_-](?:id|secret))?|(?:login|sshpass)\b[^\n\v]{0,80}?\s-p)[ =]?[\"']?"
    rb"(?=[\w+/=.!@#%^&-]*\d)(?=[\d+/=.!@#%^&_-]*[A-Za-z])[\w+/=.!@#%^&-]{8,}"
)
# What people write into cards and notes. tests/publishing/test_secret_scan.py counts the false alarms on real text.
PROSE = {
    # Not addresses for examples or for nobody, nor the user of a Git server
    "a mail address (name the file in `include` if it should be there)": rb"(?:(?<=mailto:)|(?<![\w.+/:@-]))(?!(?:git|no-?reply)@)"
    rb"[A-Za-z0-9][\w.+-]*@(?!(?:[A-Za-z0-9-]+\.)*(?:example\.(?:com|net|org)|example|test|invalid|noreply\.github\.com)(?![\w.-]*\w))"
    rb"(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}(?![\w@(-])",
    "what is called a key, token or password": rb"(?i)(?<![\w-])[\w-]*?(?:"
    + _NAMED
    + rb"|"
    + _NAMED_LONG
    + rb"|"
    + _OF_CURL
    + rb"|"
    + _OF_FLAGS
    + rb")",
}
# At least two parts, and not the end of a URL. Also a path on another machine, `me@cluster:/home/me` or `cluster:/home/me`
_HOME = rb"[\w.-]+@[\w.-]+:/[\w.@+-]+/[^\s\"'`|)]*|(?<!\w)[A-Za-z]:/[\w.@+-]+/[^\s\"'`|)]*|"
_HOME += rb"(?:(?<![\w./<-])/(?:home|Users)|(?<![\w.:/<-])/root)/[\w.@+-]+[^\s\"'`|)]*|(?<!\w)[A-Za-z]:\\{1,2}[\w .-]+\\[^\s\"'`|)]*|(?<![\w/])~/[\w.-]+[^\s\"'`|)]*"
HOME_PATH = re.compile(_HOME)
_LOCAL = (
    rb"(?<![\w./<-])/(?:tmp|mnt|media|data|var|opt|srv|scratch|work|workspace|gpfs|lustre|nfs|content|kaggle|private|Volumes"
    rb"|fsx|dbfs|teamspace|cluster|storage|projects|gscratch|nobackup|raid)"
    rb"/[\w.@+-]+[^\s\"'`|)]*|file:///[^\s\"'`|)]+|" + _HOME
)
# Roots of clusters that are also words of addresses: not in a link. The last ones count only with a usual second part.
_OF_CLUSTERS = (
    rb"disks?|homes|nethome|proj(?:ect)?|projappl|groups?|ptmp|pscratch|localscratch|beegfs|ceph(?:fs)?|weka(?:fs)?|afs|shared|lus|lfs|nas|efs"
    rb"|users/[\w.-]+|[\w-]+/(?:home|Users)|usr/users"
    rb"|(?:disk|home|data|mnt|nfs|raid|scratch|work|storage|gpfs|lustre|hdd|ssd|nvme|vol|volume)\d+"
    rb"|(?:n|p|net|network|global|export)/(?:home|scratch|netscratch|project|holy|cfs)\w*"
)
_NO_LINK = rb"(?<![\w.:/<-])(?<!\]\()(?<!href=[\"'])(?<!src=[\"'])"
# First parts of paths on every machine. What lies there says nothing of anybody.
OF_THE_SYSTEM = frozenset(("usr", "etc", "dev", "bin", "sbin", "lib", "proc", "sys", "run", "System", "Library"))
# Chat templates may name folders of the model's tools: `/mnt/data`.
TEMPLATES = (".jinja", "tokenizer_config.json", "chat_template.json")
ABSOLUTE = re.compile(r"(?:file://|~)?/[^/\s<>]+/\S.*|[A-Za-z]:[\\/]\S.*|\\\\\S+")
TRAINING_ROW = re.compile(rb'"(?:clean_prompt|perturbed_prompt)"')


class Finding(NamedTuple):
    """Something that must not be sent, and its place."""

    file: str
    line: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.file}{f', line {self.line}' if self.line else ''}: {self.what}"


def check_links(folder: Path, include: Sequence[str] = ()) -> None:
    """
    Raises [`ConsistencyError`] for symbolic links in place of files that are read or sent: only files in the folder
    are published. Other links are ignored.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        asked_for = any(fnmatch(name, pattern) for pattern in include)
        is_of_page = _is_of_page(f"{name}/x.jinja") if path.is_dir() else "/" not in name or _is_of_page(name)
        if path.is_symlink() and (asked_for or is_of_page):
            raise ConsistencyError(
                f"{path} is a symbolic link, which is not followed: it could send a file from outside. Copy the file into "
                "the folder, or remove the link."
            )


def choose_files(folder: Path, include: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """
    Returns the files of a model's folder to send (`include` has patterns of further ones), and the reason for each
    other file or folder to stay.
    """
    sent, left_out = [], {}
    # The lock of the command that publishes names this machine.
    regular = [of for of in folder.rglob("*") if of.is_file() and not of.is_symlink() and of.name != LOCK]
    paths = sorted(path.relative_to(folder).as_posix() for path in regular)
    for pattern in include:
        found = [path for path in paths if fnmatch(path, pattern)]
        if not found:
            raise ConsistencyError(f"`include`: no file in {folder} is called {pattern}.")
        for path in found:
            if path.endswith(PICKLES):
                raise ConsistencyError(f"`include`: {path} is a pickle, which is never sent. Save it as safetensors.")
    for path in paths:
        top = path.split("/")[0]
        if any(fnmatch(path, pattern) for pattern in include) or _is_of_page(path):
            sent.append(path)
        elif "/" in path:
            left_out[f"{top}/"] = "training data" if top in ROW_FOLDERS else "not part of the page"
        elif path.endswith(PICKLES):
            left_out[path] = "a pickle, which can run code when it is loaded"
        else:
            is_of_data = path.endswith(ROWS) or path == TRAINED_PAIRS
            left_out[path] = "training data" if is_of_data else "not part of the page"
    return sent, left_out


def scan(
    folder: Path,
    files: Sequence[str],
    changed: Mapping[str, bytes] = MappingProxyType({}),
    include: Sequence[str] = (),
) -> list[Finding]:
    """
    Searches files for content that must not be sent. `changed` has new content of files that publishing changes; files
    that `include` names may contain training rows. The findings name secrets, and do not quote them.
    """
    findings = []
    for name in files:
        if name.endswith(".safetensors"):
            content, fault = _read_header(folder / name)
            findings += [Finding(name, None, fault)] if fault else []
        else:
            content = _as_utf8(changed[name] if name in changed else (folder / name).read_bytes())
        if re.match(rb"\x80[\x02-\x05]|PK\x03\x04", content):
            findings.append(Finding(name, None, "a pickle or an archive under another name"))
        asked_for = any(fnmatch(name, pattern) for pattern in include)
        has_lines = not name.endswith((*BINARY, ".safetensors"))
        for number, what in sorted(set(_find(name, content, folder, asked_for))):
            findings.append(Finding(name, _line(folder / name, content, number) if has_lines else None, what))
    return findings


def _as_utf8(content: bytes) -> bytes:
    """Returns the content of a text file in UTF-8. In UTF-16 or UTF-32, no pattern would be found."""
    for mark, encoding in (
        (BOM_UTF32_LE, "utf-32"),
        (BOM_UTF32_BE, "utf-32"),
        (BOM_UTF16_LE, "utf-16"),
        (BOM_UTF16_BE, "utf-16"),
    ):
        if content.startswith(mark):
            with suppress(UnicodeDecodeError):
                return content.decode(encoding).encode(errors="replace")
    return content


def _unescaped(content: bytes) -> bytes:
    """Returns JSON with the characters that escapes stand for. Its lines stay: a line break in a string is another white space."""
    return re.sub(rb"\\(?:u00([2-7][0-9a-fA-F])|(.))", _character, content)


def _character(escape: re.Match[bytes]) -> bytes:
    code, letter = escape.groups()
    return bytes.fromhex(code.decode()) if code else {b"n": b"\v", b"t": b"\t", b"r": b"\r"}.get(letter, letter)


def _line(path: Path, content: bytes, number: int) -> int:
    """Returns the number of a line of the content in the present file, or in the content if the line is not in the file."""
    line, there = content.split(b"\n")[number], _as_utf8(path.read_bytes()).split(b"\n") if path.exists() else []
    return 1 + (there.index(line) if line in there else number)


def _is_of_page(path: str) -> bool:
    # In patterns, `*` also matches `/`.
    return any(path.count("/") == pattern.count("/") and fnmatch(path, pattern) for pattern in SENT)


def _find(name: str, content: bytes, folder: Path, asked_for: bool) -> Iterator[tuple[int, str]]:
    """Yields the line, from 0, and kind of everything in a file that must not be sent."""
    text = _unescaped(content) if name.endswith(ESCAPED) else content
    for place, what in _search(name, text, folder, asked_for):
        yield text.count(b"\n", 0, place), what
    if name.endswith(".json") and Path(name).name not in VOCABULARY:
        paths = _paths(name, folder)
        for key, value in _texts(content):
            if ABSOLUTE.fullmatch(value) and not paths.search(value.encode()):
                place = content.find(json.dumps(value)[1:-1].encode())
                yield content.count(b"\n", 0, max(place, 0)), f"a local path in `{key}` ({value[:80]})"


def _search(name: str, content: bytes, folder: Path, asked_for: bool) -> Iterator[tuple[int, str]]:
    """Yields the place and kind of everything in a file's text that must not be sent."""
    token = get_token()
    secrets = SECRETS | ({"the token that you are logged in with": re.escape(token).encode()} if token else {})
    known = {match.span(): what for what, pattern in secrets.items() for match in re.finditer(pattern, content)}
    yield from ((start, what) for (start, _), what in known.items())
    here = re.escape(str(folder.resolve()).encode())
    yield from ((match.start(), "the path of this folder") for match in re.finditer(here + rb"(?![\w-])", content))
    if Path(name).name in VOCABULARY or name.endswith(BINARY):
        return
    for match in _paths(name, folder).finditer(content):
        if not re.match(here, match[0]):
            yield match.start(), f"a local path ({match[0][:80].decode(errors='replace')})"
    if not name.endswith(TEMPLATES) and not name.startswith(("LICENSE", "NOTICE")):
        for what, pattern in PROSE.items():
            if not (asked_for and "mail" in what):
                for start, end in (match.span() for match in re.finditer(pattern, content)):
                    if not any(low < end and start < high for low, high in known):
                        yield start, what
    if not asked_for:
        yield from ((match.start(), "training rows") for match in TRAINING_ROW.finditer(content))


def _paths(name: str, folder: Path) -> re.Pattern[bytes]:
    return HOME_PATH if name.endswith(TEMPLATES) else _local_path(folder)


def _local_path(folder: Path) -> re.Pattern[bytes]:
    """
    Returns the pattern of paths on this machine: under the usual roots, and under those of the working directory, of the home, and of
    the folder that is published.
    """
    own = set()
    for find in (Path.cwd, Path.home, folder.resolve):
        with suppress(OSError, RuntimeError):  # The working directory was removed, or the home is not known.
            parts = find().parts[1:]
            own.add("/".join(parts[: 2 if {*parts[:1]} & OF_THE_SYSTEM else 1]))
    roots = [_OF_CLUSTERS, *(re.escape(root.encode()) for root in sorted(own - OF_THE_SYSTEM - {""}))]
    return re.compile(_LOCAL + rb"|" + _NO_LINK + rb"/(?:" + rb"|".join(roots) + rb")/[\w.@+-]+[^\s\"'`|)]*")


def _texts(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields each string in JSON, with its key."""
    try:
        stack: list[tuple[str, Any]] = [("", json.loads(content))]
    except (ValueError, RecursionError):
        return
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict):
            stack += [(str(name), part) for name, part in value.items()]
        elif isinstance(value, list):
            stack += [(key, part) for part in value]
        elif isinstance(value, str):
            yield key, value


def _read_header(path: Path) -> tuple[bytes, str | None]:
    """Returns the header of a safetensors file, and its fault if it has one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        header = file.read(length) if length <= size - 8 else b""
    try:
        tensors = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        return start + header, "not a safetensors file"
    return header, None if 8 + length + end == size else "cut short: save the model again"
