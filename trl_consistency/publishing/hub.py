"""Publishes a folder: prepares and scans it, updates its card and config, and uploads it in one commit."""

import shlex
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard, get_token
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from ..errors import ConsistencyError, one_line
from ..escaping import printable
from ..files import write_bytes
from ..finite import check_files
from .page import ADAPTER_CONFIG, check_halves, is_hub_name, load_json, prepare_page
from .results import EVAL_RESULTS, PICTURES, RESULTS_FILE
from .secret_scan import check_links, choose_files, scan


# A checkpoint has both, and is not changed: a run resumes from unchanged files only. `save_state()` writes the first beside a
# finished model, too.
CHECKPOINT_STATE = "trainer_state.json"
RESUMED_FROM = ("optimizer.*", "optimizer_*", "pytorch_model_fsdp*", "scheduler.pt", "rng_state*.pth", "global_step*")
# What a model is loaded from. Those of an earlier upload would be loaded in place of the new files, or along with them.
LOADED = (
    *("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", "adapter_model*.bin", "adapter_config.json"),
    *("config.json", "generation_config.json", "*.jinja", "chat_template.json", "tokenizer*", "vocab*", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json", "processor_config.json", "preprocessor_config.json"),
    *(RESULTS_FILE, *PICTURES),
)

MESSAGE = "Upload with trl-consistency"


def publish(
    folder: str | Path,
    repo_id: str,
    base_model: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    include: Sequence[str] = (),
    commit_message: str = MESSAGE,
    token: str | None = None,
    dry_run: bool = False,
) -> str | None:
    """
    Publishes a trained model: its weights, tokenizer, card, results and plots.

    The card and the adapter's config are completed in the folder first (a checkpoint is not changed). All files arrive
    in one commit, or none. Weights, configs, tokenizer and results of an earlier model on the page that this one lacks
    are removed in the same commit; other files stay. After a failure, repeat the call: weights already sent are not sent again.

    Args:
        folder (`str` or [`~pathlib.Path`]):
            Folder of the model.
        repo_id (`str`):
            Repository on the Hub: `user/name`. It is created if missing.
        base_model (`str`, *optional*):
            The base model's name on the Hub, if the folder names a local one. It is written into the folder.
        private (`bool`, *optional*):
            Whether a new repository is private. `None` means the account's default. If `True`, a public repository that
            exists is refused.
        revision (`str`, *optional*):
            Branch. It is created if missing.
        include (`Sequence[str]`, *optional*, defaults to `()`):
            Patterns of further files to send, such as `report.html`.
        commit_message (`str`, *optional*, defaults to `"Upload with trl-consistency"`):
            Message of the commit.
        token (`str`, *optional*):
            Token for the Hub. By default that of the login, or `HF_TOKEN`.
        dry_run (`bool`, *optional*, defaults to `False`):
            Whether to only print what would be sent. The folder is not changed then.

    Returns:
        `str`: Address of the page; None in a dry run.

    Raises:
        [`ConsistencyError`]: If the folder is not a complete model, contains something that must not be published, or
            the upload fails.
    """
    upload = prepare(folder, repo_id, base_model, include, revision)
    if not dry_run:
        return send(upload, private, revision, commit_message, token)
    print(upload.listing())
    return None


@dataclass(frozen=True)
class Upload:
    """What would be sent of a folder: names of `files`, why others are `left_out`, and the contents of the `changed`."""

    folder: Path
    repo_id: str
    files: list[str]
    left_out: dict[str, str]
    changed: dict[str, bytes]
    base_model: str | None  # on the Hub
    include: Sequence[str] = ()

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each file."""
        sizes = {name: len(content) for name, content in self.changed.items()}
        return {name: sizes[name] if name in sizes else (self.folder / name).stat().st_size for name in self.files}

    def listing(self) -> str:
        """Returns what would be sent, and what stays, as text."""
        sent = [f"  {name} ({size:,} bytes)" for name, size in self.sizes().items()]
        stays = [f"  {name}: {why}" for name, why in self.left_out.items()]
        return printable("\n".join([f"Would send to {self.repo_id}:", *sent, "Stays here:", *stays]))


def prepare(
    folder: str | Path,
    repo_id: str,
    base_model: str | None = None,
    include: Sequence[str] = (),
    revision: str | None = None,
) -> Upload:
    """Completes the page of a folder, and checks and scans what [`publish`] would send. It writes and sends nothing."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ConsistencyError(f"There is no folder {folder}.")
    check_repo_id(repo_id)
    check_links(folder, include)
    changed = prepare_page(folder, repo_id, base_model, revision)
    files, left_out = choose_files(folder, include)
    files += [name for name in changed if name not in files]
    _warn_of_code(folder, files)
    card = changed["README.md"].decode()
    for name in PICTURES:
        is_asked_for = name in card or any(fnmatch(name, pattern) for pattern in include)
        if name in files and RESULTS_FILE not in files and not is_asked_for:
            files.remove(name)
            left_out[name] = f"a picture of figures, and there is no {RESULTS_FILE}"
    findings = scan(folder, files, changed, include)
    if findings:
        listed = "\n".join(f"  {finding}" for finding in findings)
        raise ConsistencyError(f"Nothing was sent: {folder} holds what must not be published.\n{listed}")
    check_halves(folder)
    if check_files(folder) == 0:
        raise ConsistencyError(f"{folder}: the safetensors files hold no tensor: nothing was trained or saved.")
    data: Any = ModelCard(changed["README.md"].decode()).data
    base = data.base_model if isinstance(data.base_model, str) else None
    return Upload(folder, repo_id, files, left_out, changed, base, include)


def _warn_of_code(folder: Path, files: Collection[str]) -> None:
    """Warns of Python code that a config names, and that is not sent: without it, the model may not load."""
    for config in (folder / name for name in files if name.endswith("config.json")):
        named = load_json(config).get("auto_map")
        values = list(named.values()) if isinstance(named, dict) else []
        classes = [of for one in values for of in (one if isinstance(one, list) else [one]) if isinstance(of, str)]
        # `user/name--file.Class` is of another page.
        own = {f"{of.rpartition('.')[0]}.py" for of in classes if "." in of and "--" not in of}
        if lacking := sorted(own - set(files)):
            warnings.warn(
                f"{config.name} names code (`auto_map`), and {', '.join(lacking)} is not sent, so that the model may not load from its page. "
                f"Send it with `--include {' '.join(lacking)}`, if it is in {folder}."
            )


def send(
    upload: Upload,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str = MESSAGE,
    token: str | None = None,
) -> str:
    """Writes what has changed into the folder, sends the files in one commit, and returns the address of the page."""
    folder, repo_id, files, changed = upload.folder, upload.repo_id, upload.files, upload.changed
    if not is_checkpoint(folder):
        for name in changed.keys() - {EVAL_RESULTS}:
            _write(folder / name, changed[name])
    api = HfApi(token=token)
    try:
        if token is None and get_token() is None:
            raise ConsistencyError("there is no token: run `hf auth login` or set HF_TOKEN, with one that may write.")
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        check_private(api, repo_id, private)
        if upload.base_model is not None and (folder / ADAPTER_CONFIG).exists() and _lacks(api, upload.base_model):
            warnings.warn(
                f"The Hub has no {upload.base_model}, or your token may not see it: nobody can load the adapter without its "
                "base model. Give its name on the Hub with `--base_model`."
            )
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        earlier = _left_over(api.list_repo_files(repo_id, revision=revision), files)
        operations = [CommitOperationAdd(name, changed.get(name, str(folder / name))) for name in files]
        removals = [CommitOperationDelete(name) for name in earlier]
        api.create_commit(repo_id, [*operations, *removals], commit_message=commit_message, revision=revision)
    except Exception as error:  # errors of the Hub, the name and the network share no type
        raise ConsistencyError(
            f"{folder} was not published: {explain(error, repo_id)} Nothing is lost: `{_command(upload, private, revision)}` "
            "goes on from here."
        ) from None
    if earlier:
        warnings.warn(f"{repo_id}: removed what an earlier upload left and this model lacks: {', '.join(earlier)}.")
    return str(url)


def _command(upload: Upload, private: bool | None, revision: str | None) -> str:
    """Returns the command that sends the same files to the same place, as private as they were to be."""
    options = [*(["--private"] if private else []), *(["--revision", revision] if revision is not None else [])]
    if upload.base_model is not None and is_checkpoint(upload.folder):  # the name is not written there
        options += ["--base_model", upload.base_model]
    options += ["--include", *upload.include] if upload.include else []
    return shlex.join(["trl-consistency", "push", str(upload.folder), upload.repo_id, *options])


def is_checkpoint(folder: Path) -> bool:
    """Whether a run can be resumed from a folder: it has the state of a trainer and those of its optimizer or chance."""
    has_states = any(any(folder.glob(pattern)) for pattern in RESUMED_FROM)
    return has_states and (folder / CHECKPOINT_STATE).exists()


def check_private(api: HfApi, repo_id: str, private: bool | None, repo_type: str = "model") -> None:
    """Raises [`ConsistencyError`] if a repository should be private, and was there before and is public."""
    if private and api.repo_info(repo_id, repo_type=repo_type).private is False:
        raise ConsistencyError(
            f"{repo_id} is public already, and only a new repository is made private. Make it private on its page, or take "
            "another name."
        )


def _lacks(api: HfApi, model: str) -> bool:
    """Whether the Hub says that it has no such model. A question that fails otherwise says nothing."""
    try:
        return not api.repo_exists(model)
    except (HfHubHTTPError, OSError):
        return False


def _left_over(published: Collection[str], files: Collection[str]) -> list[str]:
    """Returns the files of an earlier model on the page that the new one does not replace."""
    loaded = {name for name in published if any(fnmatch(name, pattern) for pattern in LOADED)}
    ours = {name for name in loaded if "/" not in name or name.startswith("additional_chat_templates/")}
    ours |= {EVAL_RESULTS} & set(published)
    return sorted(ours - set(files))


def check_repo_id(repo_id: str) -> None:
    """
    Checks the name of a repository.

    Args:
        repo_id (`str`):
            The name.

    Raises:
        [`ConsistencyError`]: If it is not `user/name`.
    """
    if not is_hub_name(repo_id) or "/" not in repo_id:
        raise ConsistencyError(
            f"`{repo_id}` is not a name on the Hub: write `user/name`, of letters, digits, `-`, `_` and `.`."
        )


def explain(error: BaseException, repo_id: str) -> str:
    """
    Explains an error from the Hub.

    Args:
        error (`BaseException`):
            The error.
        repo_id (`str`):
            The repository that it is about.

    Returns:
        `str`: What it means and what to do, to follow a colon.
    """
    if isinstance(error, RuntimeError) and error.__cause__ is not None:  # wraps the error of a failed upload
        return explain(error.__cause__, repo_id)
    if isinstance(error, ConsistencyError):
        return str(error)
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set: unset it."
    response = getattr(error, "response", None)
    if response is None:
        return f"the connection to the Hub failed ({type(error).__name__}: {one_line(error)}). Try again."
    status = response.status_code
    if status == 401:
        return "the Hub does not know the token (401): run `hf auth login`, or set HF_TOKEN, with one that may write."
    if status == 403:
        return f"the token may not write to {repo_id} (403): make one that may, or push to a name of your own."
    if status == 404:
        return f"the Hub has no {repo_id}, or the token may not see it (404): check the name, or take another token."
    if status == 429:
        wait = response.headers.get("retry-after")
        return f"too many requests (429): try again {f'in {wait} seconds' if wait else 'later'}."
    if status >= 500:
        return f"the Hub failed ({status}): try again later."
    message = getattr(error, "server_message", None) if isinstance(error, HfHubHTTPError) else None
    return f"the Hub refused it ({status}): {one_line(Exception(message)) if message else one_line(error)}"


def _write(path: Path, content: bytes) -> None:
    """Writes a file atomically, if it changes."""
    if not path.exists() or path.read_bytes() != content:
        write_bytes(path, content)
