"""Prepares a folder's model card and adapter config for the Hub."""

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..errors import ConsistencyError, one_line
from ..files import write_text
from ..generation.model_identity import BASE_WEIGHTS
from ..json_files import no_number
from ..smollm2.checkpoint import HUB_NAME, origin_of
from ..weight_files import ADAPTER_CONFIG, shapes_in
from .results import (
    DATASET_TYPES,
    EVAL_RESULTS,
    RESULTS_FILE,
    benchmark_results,
    model_index,
    read_results,
    results_section,
)


# Placeholders that `trainer/card.py` writes before a folder is published.
LOCAL_MODEL, LOCAL_REPO, LOCAL_BASE = "a local model", "path/to/this/folder", "path/to/the/base/model"
LARGEST_CARD = 5_000_000  # bytes
RESULTS_HEADING, NEXT_HEADING = "## Results", "## Training"
# What stands between these lines is replaced. Neither is shown.
RESULTS_START = "<!-- trl-consistency replaces what stands between this line ... -->"
RESULTS_END = "<!-- ... and this line, when the model is measured again. -->"
# The lines of a card that load its own model, and those that name its base model, as `templates/model_card.md` has them
_BRANCH = r'(?:, revision="[^"\n]*")?'
_USE = re.compile(
    rf'(?P<model>^model = (?:\w+For(?:CausalLM|ConditionalGeneration)\.from_pretrained\(|PeftModel\.from_pretrained\(base, )")(?P<repo>[^"\n]+)"{_BRANCH}(?P<rest>[^\n]*\n)'
    rf'(?P<tokenizer>tokenizer = AutoTokenizer\.from_pretrained\(")(?P=repo)"{_BRANCH}(?P<end>\))',
    re.MULTILINE,
)
_SERVE = re.compile(
    r"^(?P<serve>vllm serve )(?P<base>\S+)(?P<options> .*--lora-modules [^\s=]+=)(?:\$\(hf download (?P<branch_of>[^)\s]+)[^)\n]*\)|(?P<repo>\S+))$",
    re.MULTILINE,
)
MAIN = "main"  # the branch that is loaded where none is named
_BASE_LINK = r"\[[^\]\n]*\]\(https://huggingface\.co/{name}\)(?: \(revision `[^`\n]*`\))?"
_RESULTS = re.compile(rf"^{re.escape(RESULTS_START)}$.*?^{re.escape(RESULTS_END)}\n*", re.MULTILINE | re.DOTALL)
_RESULTS_ALONE = re.compile(rf"^{RESULTS_HEADING}\n+{_RESULTS.pattern}(?=##? |\Z)", re.MULTILINE | re.DOTALL)
_LOAD_BASE = r'^(?P<load>base = \w+\.from_pretrained\("){name}"(?:, revision="[^"\n]*")?'
# Where a card says that its base model is a local one, as `templates/model_card.md` does
_LOCAL_BASE_LINK = re.compile(rf"^((?:An adapter for|A fine-tuned version of) ){LOCAL_MODEL}", re.MULTILINE)


def prepare_page(
    folder: Path, repo_id: str, base_model: str | None = None, revision: str | None = None
) -> dict[str, bytes]:
    """
    Returns the new content, by file name, of the files that publishing changes: the card, and the adapter's config.
    `base_model` is the base model's name on the Hub, by default as in the folder. `revision` is the branch that the
    files go to.
    """
    _check_weights(folder)
    card = check_card(folder)
    data: Any = card.data
    config_path, changed = folder / ADAPTER_CONFIG, {}
    if config_path.exists():
        config = load_json(config_path)
        named = config.get("base_model_name_or_path")
        # A local folder may be called as a model on the Hub is.
        is_local = data.get("base_model") is None and LOCAL_MODEL in card.text
        base_model = hub_base(named, base_model, is_local)
        # PEFT loads the base model by this name, at this revision.
        config["base_model_name_or_path"] = base_model
        if named != base_model:
            config["revision"] = None
            data.pop(BASE_WEIGHTS, None)  # of the folder
        elif not config.get("revision") and data.get("base_model") in (base_model, [base_model]):
            config["revision"] = data.get("base_model_revision")
        changed[ADAPTER_CONFIG] = (json.dumps(config, indent=2, sort_keys=True)).encode()
    else:
        base_model = hub_base(None, base_model) if base_model else None
        if data.get("library_name") == "peft":
            warnings.warn(
                f"{folder}: the card is that of an adapter (`library_name: peft`), and the folder holds a whole model, which its example "
                "does not load. Correct the card if the adapter was merged."
            )
    if base_model:
        link = f"[{base_model}](https://huggingface.co/{base_model})"
        if (earlier := data.get("base_model")) not in (None, base_model, [base_model]):
            data.pop("base_model_revision", None)
            name = re.escape(str(earlier))
            card.text = re.sub(_BASE_LINK.format(name=name), lambda _: link, card.text, count=1)
            loaded = re.compile(_LOAD_BASE.format(name=name), re.MULTILINE)
            card.text = loaded.sub(lambda found: f'{found["load"]}{base_model}"', card.text)
        data.base_model = base_model
        if data.tags:  # PEFT's name a local base model, too
            data.tags = [re.sub(r"^(base_model:adapter:).*", rf"\1{base_model}", str(tag)) for tag in data.tags]
        card.text = _LOCAL_BASE_LINK.sub(lambda found: f"{found[1]}{link}", card.text, count=1)
        card.text = card.text.replace(LOCAL_BASE, base_model)
    card.text = _with_repo(card.text, repo_id, base_model, revision)
    _put_results(card, folder, repo_id.split("/")[-1])
    changed["README.md"] = str(card).encode()
    if benchmarks := benchmark_results(read_results(folder).results, repo_id):
        changed[EVAL_RESULTS] = benchmarks
    return changed


def _with_repo(text: str, repo_id: str, base_model: str | None, revision: str | None) -> str:
    """
    Returns a card's text whose examples load the model from `repo_id`, and from its branch `revision`, and not from where
    it was published before: the place of the first example. Examples of other models stay.
    """
    loaded = [use["repo"] for use in _USE.finditer(text) if use["repo"] != base_model]
    ours = {LOCAL_REPO, repo_id, *([] if LOCAL_REPO in loaded else loaded[:1])}
    has_branch = revision not in (None, MAIN)
    branch = f', revision="{revision}"' if has_branch else ""
    # vLLM takes an adapter of the main branch alone, or a folder.
    served_from = f"$(hf download {repo_id} --revision {revision} --quiet)" if has_branch else repo_id

    def renamed(use: re.Match[str]) -> str:
        if use["repo"] not in ours:  # such as one that puts the adapter on its base model by itself
            return use[0]
        return f"""{use["model"]}{repo_id}"{branch}{use["rest"]}{use["tokenizer"]}{repo_id}"{branch}{use["end"]}"""

    def served(line: re.Match[str]) -> str:
        if loaded and (line["branch_of"] or line["repo"]) not in ours:
            return line[0]
        base = base_model or line["base"]
        options = line["options"] if base == line["base"] else re.sub(r" --revision \S+", "", line["options"])
        return f"{line['serve']}{base}{options}{served_from}"

    text = _SERVE.sub(served, text)
    return _USE.sub(renamed, text).replace(LOCAL_REPO, repo_id)


def add_results(folder: str | Path, unfinished: str | Path | None = None) -> None:
    """
    Writes the results in a model's folder (`consistency_results.json`) into its card, replacing earlier ones.

    Args:
        folder (`str` or [`~pathlib.Path`]):
            Folder of the model.
        unfinished (`str` or [`~pathlib.Path`], *optional*):
            Folder with new results and pictures. The card is written there, before all files are moved together. By default
            `folder`.

    Raises:
        [`ConsistencyError`]: If there is no valid card, its earlier results cannot be replaced, or the new ones are not valid.
    """
    folder, place = Path(folder), Path(unfinished or folder)
    card = check_card(folder)
    _put_results(card, place, folder.name)
    write_text(place / "README.md", str(card))


def insert_results(text: str, results: str) -> str:
    """
    Returns a card's text with results (Markdown) in place of earlier ones of this package, or in a section of their own before
    "Training" or at the end. What users wrote stays.
    """
    results = f"{RESULTS_START}\n\n{results.strip()}\n\n{RESULTS_END}\n\n"
    if _RESULTS.search(text):
        text = _RESULTS.sub(lambda _: results, text)
    else:
        before, *after = re.split(rf"^(?={NEXT_HEADING}$)", text, maxsplit=1, flags=re.MULTILINE)
        section = f"{RESULTS_HEADING}\n\n{results}"
        text = f"{before}{section}{after[0]}" if after else f"{before.rstrip()}\n\n{section}"
    return text.rstrip() + "\n"


def _without_results(text: str) -> str:
    """Returns a card's text without the results of this package, and without their heading if nothing else stands below it."""
    return _RESULTS.sub("", _RESULTS_ALONE.sub("", text))


def hub_base(named: Any, given: str | None, is_local: bool = False) -> str:
    """
    Returns the name of an adapter's base model on the Hub. Warns if it is not the model that the adapter names.

    Args:
        named (`str`, *optional*):
            The name in the adapter's config.
        given (`str`, *optional*):
            The name that the user gives, which replaces it.
        is_local (`bool`, *optional*, defaults to `False`):
            Whether `named` is a local folder, even if it looks like a name on the Hub.

    Returns:
        `str`: `given` or, without it, `named`.

    Raises:
        [`ConsistencyError`]: If `given` is not a name on the Hub, or is missing and `named` is a local name.
    """
    if given is not None:
        if not is_hub_name(given):
            raise ConsistencyError(f"`base_model` {given} is not a name on the Hub: write `user/name`.")
        if origin := origin_of(named):
            warnings.warn(
                f"The adapter was trained on {origin}; on the weights of {given} it acts a little otherwise."
            )
        elif is_hub_name(named) and not (is_local or os.path.exists(named)) and named != given:
            warnings.warn(f"The adapter names {named} as its base model, and is loaded with {given} from now on.")
        return given
    if is_local or not is_hub_name(named) or os.path.exists(named):
        raise ConsistencyError(
            f"The base model is {named or 'not named'}, which nobody else can load by that name. Say what it is called "
            f"on the Hub, with `--base_model {HUB_NAME if origin_of(named) else 'user/name'}` (in Python, `base_model`)."
        )
    return named


def is_hub_name(name: Any) -> bool:
    """Whether a name can be a model's name on the Hub."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return isinstance(name, str)


def _check_weights(folder: Path) -> None:
    if not any(folder.glob("*.safetensors")):
        weights = [path.name for path in folder.glob("*_model*.bin")]
        what = f"{weights[0]} is a pickle, which is never sent: save the model" if weights else "save a model there"
        raise ConsistencyError(f"{folder} has no weights in safetensors files; {what} with `save_model`.")
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    of_whole = [name for name in files if name.startswith("model")]
    if of_whole and (len(of_whole) < len(files) or (folder / ADAPTER_CONFIG).exists()):
        raise ConsistencyError(
            f"{folder} holds an adapter and the weights of a whole model ({of_whole[0]}), and one of them is of another training: "
            "remove its files."
        )
    for index in folder.glob("*.safetensors.index.json"):
        weight_map = load_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
            raise ConsistencyError(f"{index} must have a `weight_map` of files by weight. Save the model again.")
        shards = set(weight_map.values())
        missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        if missing:
            raise ConsistencyError(
                f"{folder}: {index.name} names {missing[0]}, which is not there. Save the model again."
            )


def check_halves(folder: Path) -> None:
    """Raises [`ConsistencyError`] for an adapter that lacks one matrix of a pair."""
    names = {name for file in folder.glob("adapter_model*.safetensors") for name in shapes_in(file)}
    for half, other in (("lora_A", "lora_B"), ("lora_B", "lora_A")):
        alone = sorted(name for name in names if f".{half}." in name and name.replace(half, other) not in names)
        if alone:
            raise ConsistencyError(
                f"{folder}: the adapter has {alone[0]} without its `{other}`: it lost weights. Save the model again."
            )


def check_card(folder: Path) -> ModelCard:
    """Returns the card in a folder; raises [`ConsistencyError`] if there is none, or it is not valid."""
    path = folder / "README.md"
    if path.exists() and not path.is_file():
        raise ConsistencyError(f"{path} is a folder, a pipe or a device, and not a file: remove it.")
    if not path.exists():
        raise ConsistencyError(f"{folder} has no model card (README.md): `trainer.save_model()` writes one.")
    if path.stat().st_size > LARGEST_CARD:
        raise ConsistencyError(
            f"{path} has {path.stat().st_size:,} bytes, and the Hub shows no card of more than {LARGEST_CARD:,}: shorten it."
        )
    try:
        # Some editors put a byte order mark first, behind which the client finds no metadata.
        card = ModelCard(path.read_text(encoding="utf-8-sig"), ignore_metadata_errors=False)
    except (ValueError, yaml.YAMLError) as error:
        raise ConsistencyError(f"{path} cannot be read as a model card: {one_line(error)}") from None
    return card


def load_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise ConsistencyError(f"{path} is not JSON: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise ConsistencyError(f"{path} must hold a JSON object.")
    return content


def _put_results(card: ModelCard, folder: Path, model_name: str) -> None:
    data: Any = card.data
    entries = data.eval_results or []
    others = [entry for entry in entries if entry.dataset_type not in DATASET_TYPES]
    is_marked = RESULTS_START in card.text or RESULTS_END in card.text
    if (is_marked or len(others) < len(entries)) and not _RESULTS.search(card.text):
        raise ConsistencyError(
            f"{folder / 'README.md'} has results that do not stand between `{RESULTS_START}` and `{RESULTS_END}`, so they cannot be "
            "replaced. Remove them from its text and from `model-index`: new ones get these lines."
        )
    if not (folder / RESULTS_FILE).exists():
        if len(others) < len(entries) or _RESULTS.search(card.text):
            warnings.warn(f"{folder} has no {RESULTS_FILE}: the figures of an earlier one are taken out of the card.")
            data.eval_results = others or None
            data.model_name = data.model_name if others else None
            card.text = _without_results(card.text)
        return
    page = read_results(folder)
    data.eval_results = others + model_index(page.results) or None
    data.model_name = (data.model_name or model_name) if data.eval_results else None
    plots = [path for suffix in ("png", "svg") for path in sorted(folder.glob(f"*.{suffix}"))]
    card.text = insert_results(card.text, results_section(page, plots if page.results else []))
