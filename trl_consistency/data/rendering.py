"""Renders prompts and completions to token ids, with one function for both sides of a pair and every trainer."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from tokenizers import Tokenizer
from transformers import AutoProcessor, AutoTokenizer, PreTrainedTokenizerBase, ProcessorMixin

from ..errors import ConsistencyError, InvalidPairsError, one_line
from ..json_files import fault_in
from ..weight_files import folder_of
from .control_tokens import are_rendered, check_messages
from .messages import without_none
from .template_check import check_rendered, check_roles, check_variables, with_objects, writes_arguments_twice
from .time_limit import TimeLimitError, time_limit


Message: TypeAlias = dict[str, Any]
Prompt: TypeAlias = str | list[Message]
ProcessingClass: TypeAlias = PreTrainedTokenizerBase | ProcessorMixin

# Time limit for one conversation. Templates need milliseconds, unless they loop without end.
RENDERING_SECONDS = 10.0
# About ten million tokens. A tokenizer would work on more for a long time, and nothing could stop it.
MOST_CHARACTERS = 50_000_000
MOST_ADDED = 8  # tokens that a tokenizer adds to a text; known ones add up to two
LONGEST_TEMPLATE = 1_000_000  # bytes, of which real ones have less than 100,000
# Files that hold chat templates, by their pattern in a model's folder, and the bytes that each may have
TEMPLATE_FILES = {
    "chat_template.jinja": LONGEST_TEMPLATE,
    "chat_template.json": LONGEST_TEMPLATE,
    "additional_chat_templates/*.jinja": LONGEST_TEMPLATE,
    "tokenizer_config.json": 50_000_000,  # with all special tokens
}
# Stands for a message's content, to find what a template writes around it
SENTINEL = "consistency q"
NO_END = (
    "The chat template writes no end after an answer, and TRL adds none: training does not teach the model where to stop. Train with a "
    "template that ends an answer with the end-of-sequence token"
)


def load_processing_class(
    name: str, revision: str | None = None, trust_remote_code: bool = False, **options: Any
) -> ProcessingClass:
    """Loads the tokenizer or processor of a model. Runs code that comes with it only with `trust_remote_code`."""
    if revision not in (None, "main") and os.path.isdir(name):
        raise ConsistencyError(
            f"`model_revision` is {revision}, but {name} is a folder, which has no revisions. Leave it out."
        )
    check_template_files(name, revision)
    try:
        loaded = AutoProcessor.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code, **options)
    except Exception as error:  # a damaged file makes `tokenizers` raise `Exception` itself
        raise ConsistencyError(f"The tokenizer of {name} cannot be loaded: {_reason(name, error)}") from None
    if not isinstance(loaded, PreTrainedTokenizerBase | ProcessorMixin):
        raise ConsistencyError(
            f"The tokenizer of {name} cannot be loaded: it has a `{type(loaded).__name__}` only. Copy the tokenizer's files there."
        )
    tokenizer = get_tokenizer(loaded)
    vocabulary = tokenizer.get_vocab()
    if tokenizer.vocab_size <= len(tokenizer.all_special_tokens):  # transformers makes it up if files are missing
        raise ConsistencyError(
            f"The tokenizer of {name} cannot be loaded: it has no vocabulary. Copy the tokenizer's files there."
        )
    if len(set(vocabulary.values())) < len(vocabulary):
        raise ConsistencyError(
            f"The tokenizer of {name} cannot be loaded: several of its tokens have the same number. Download or copy it again."
        )
    file = os.path.join(name, "tokenizer.json")
    if not os.path.isdir(name):
        file = str(try_to_load_from_cache(name, "tokenizer.json", revision=revision))
    end = tokenizer.eos_token
    if end is not None and os.path.isfile(file) and Tokenizer.from_file(file).token_to_id(end) is None:
        raise ConsistencyError(
            f"The tokenizer of {name} cannot be loaded: its `eos_token` {end!r} is not in its vocabulary, so that no answer of "
            "the model could end with it. Set another one in tokenizer_config.json."
        )
    return loaded


def check_template_files(name: str, revision: str | None = None) -> None:
    """Raises [`ConsistencyError`] if a file with a chat template, which would be read whole, is too large or no file."""
    try:
        folder = folder_of(name, revision)
    except HFValidationError:  # no name of the Hub, which loading reports
        return
    for pattern, most in TEMPLATE_FILES.items():
        for file in sorted(folder.glob(pattern)) if folder is not None else ():
            fault = ""
            if not file.is_file():  # reading a pipe would block
                fault = "is a folder, a pipe or a device, and not a file"
            elif file.stat().st_size > most:
                fault = f"has more than {most:,} bytes"
            if fault:
                raise ConsistencyError(f"The tokenizer of {name} cannot be loaded: {file.name} {fault}.")


def _reason(name: str, error: Exception) -> str:
    """Returns why a tokenizer cannot be loaded. `AutoProcessor` tries other files of the folder, which hides it."""
    fault = fault_in(*(Path(name) / file for file in ("tokenizer.json", "tokenizer_config.json")))
    if fault is not None:
        return fault
    if os.path.isfile(os.path.join(name, "tokenizer.json")):
        try:
            AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except Exception as of_tokenizer:
            return f"{type(of_tokenizer).__name__}: {one_line(of_tokenizer)}"
    return one_line(error)


def get_tokenizer(processing_class: ProcessingClass) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a processor (text-only pairs need nothing else), or the tokenizer itself."""
    return processing_class.tokenizer if isinstance(processing_class, ProcessorMixin) else processing_class


def chat_template_of(processing_class: ProcessingClass) -> Any:
    """Returns the chat template that messages go through, or several by name: a processor's own comes before its tokenizer's."""
    return processing_class.chat_template or get_tokenizer(processing_class).chat_template


def check_same_tokens(
    processing_class: ProcessingClass,
    argument: str,
    model: str,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """
    Raises [`ConsistencyError`] that names the trainer's `argument` if a token has another number in the tokenizer of the
    `model` with this name. Tokens that only one of the two has may differ, and a folder may hold no tokenizer.
    """
    try:
        theirs = get_tokenizer(load_processing_class(model, revision, trust_remote_code)).get_vocab()
    except ConsistencyError:
        return
    for token, number in get_tokenizer(processing_class).get_vocab().items():
        if theirs.get(token, number) != number:
            raise ConsistencyError(
                f"`{argument}`: the data are read with a tokenizer in which {token!r} is token {number}, and for {model} it is token "
                f"{theirs[token]}. It would read other texts. Use a model and a tokenizer with the same vocabulary."
            )


def skips_template(processing_class: ProcessingClass, *prompts: Prompt) -> bool:
    """Whether the prompts are text that goes through no chat template, though the tokenizer has one."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    has_template = chat_template_of(processing_class) is not None
    return has_template and bool(texts) and not are_rendered(get_tokenizer(processing_class), texts)


def is_prefilled(prompt: Prompt) -> bool:
    """Whether the prompt ends with an assistant turn for the model to continue."""
    return isinstance(prompt, list) and prompt[-1]["role"] == "assistant"


def render_prompt(
    processing_class: ProcessingClass,
    prompt: Prompt,
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> list[int]:
    """
    Renders a prompt to the token ids that precede the completion, without an end-of-sequence token.

    A string is tokenized unchanged. Chat messages go through the chat template with a generation prompt or, if the
    last turn is the assistant's, as a final message to continue. Both sides of a pair and every trainer use this
    function, so the two sides cannot be rendered differently.

    Raises [`InvalidPairsError`] if a message holds a control token, or the template omits or changes text or has no
    such variable or role, and [`TimeLimitError`] if the template does not terminate.
    """
    if isinstance(prompt, str):
        tokenizer = get_tokenizer(processing_class)
        ids = encode_text(tokenizer, prompt)
        if len(ids) < MOST_ADDED:  # they may all be tokens that the tokenizer adds to any text
            _check_tokens(tokenizer, prompt)
        return ids
    return _apply_chat_template(processing_class, prompt, tools, chat_template_kwargs, tokenize=True)


def render_text(
    processing_class: ProcessingClass,
    prompt: Prompt,
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> str:
    """Returns the text that [`render_prompt`] tokenizes, given the same arguments."""
    if isinstance(prompt, str):
        return prompt
    return _apply_chat_template(processing_class, prompt, tools, chat_template_kwargs, tokenize=False)


def message_text(message: Message) -> str:
    """Returns the text of a message, whose content may be a string or a list of blocks; empty without content."""
    return _with_content(message, in_blocks=False)["content"] or ""


def render_completion(
    processing_class: ProcessingClass,
    prompt: Prompt,
    completion: Prompt,
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    prompt_ids: list[int] | None = None,
) -> list[int]:
    """
    Renders a given completion to the token ids that follow `prompt_ids`, by default `render_prompt(prompt)`.

    The whole conversation goes through the chat template, and the ids of the answer include the end-of-turn token.
    After a string prompt, or if the template writes nothing after an answer, the end-of-sequence token is added. If the end of
    the prompt would merge with the completion into one token, the completion is tokenized on its own, because at inference the
    prompt's tokens are already fixed.
    """
    if prompt_ids is None:
        prompt_ids = render_prompt(processing_class, prompt, tools, chat_template_kwargs)
    ids = _completion_ids(processing_class, prompt, completion, tools, chat_template_kwargs, prompt_ids)
    tokenizer = get_tokenizer(processing_class)
    if isinstance(prompt, str) or tokenizer.eos_token_id is None:
        return ids
    answer = {"content": completion} if isinstance(completion, str) else completion[0]
    may_lack_end = answer.get("tool_calls") or tokenizer.decode(ids[-4:]).rstrip().endswith(
        message_text(answer).rstrip()[-1:]
    )
    if may_lack_end and not writes_end(processing_class, prompt, tools, chat_template_kwargs):
        return [*ids, tokenizer.eos_token_id]
    return ids


def writes_end(
    processing_class: ProcessingClass,
    prompt: list[Message],
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> bool:
    """Whether the chat template writes something after an answer. With GLM-4.5's, the next turn begins right behind it."""
    return bool(written_end(processing_class, prompt, tools, chat_template_kwargs))


def written_end(
    processing_class: ProcessingClass,
    prompt: list[Message],
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> str:
    """Returns what the chat template writes after an answer, without white space around it: `<|im_end|>`."""
    whole = _apply_chat_template(
        processing_class, _append(prompt, SENTINEL), tools, chat_template_kwargs, tokenize=False, is_complete=True
    )
    return str(whole).rpartition(SENTINEL)[2].strip()


def render_reply(
    processing_class: ProcessingClass,
    prompt: list[Message],
    reply: Message,
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> str:
    """Returns the text of a chat with a reply as TRL's trainers render it, whatever the chat template makes of the reply."""
    in_blocks = isinstance(processing_class, ProcessorMixin)
    return processing_class.apply_chat_template(
        [_with_content(message, in_blocks) for message in without_none([*prompt, reply])],
        tools=without_none(tools) or None,
        tokenize=False,
        **without_none(chat_template_kwargs or {}),
    )


def check_reply(
    processing_class: ProcessingClass,
    prompt: list[Message],
    reply: Message,
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> None:
    """Raises [`InvalidPairsError`] if TRL's trainers render a reply without a part of what it says."""
    whole = render_reply(processing_class, prompt, reply, tools, chat_template_kwargs)
    start = 0
    with suppress(Exception):  # some templates refuse a prompt without an answer
        start = _shared(render_text(processing_class, prompt, tools, chat_template_kwargs), whole)
    check_rendered(whole[start:], [_with_content(reply, in_blocks=False)], tools, is_complete=True)


def _completion_ids(
    processing_class: ProcessingClass,
    prompt: Prompt,
    completion: Prompt,
    tools: list[dict] | None,
    chat_template_kwargs: dict[str, Any] | None,
    prompt_ids: list[int],
) -> list[int]:
    tokenizer = get_tokenizer(processing_class)

    def render_whole(tokenize: bool) -> Any:
        if isinstance(prompt, str):
            _check_tokens(tokenizer, str(completion))
            eos_token, said = tokenizer.eos_token or "", str(completion)
            if eos_token and said.rstrip().endswith(eos_token):  # nothing comes after the end
                said = said.rstrip().removesuffix(eos_token)
            text = f"{prompt}{said}{eos_token}"
            return encode_text(tokenizer, text) if tokenize else text
        messages = _append(prompt, completion)
        return _apply_chat_template(
            processing_class, messages, tools, chat_template_kwargs, tokenize=tokenize, is_complete=True
        )

    ids = render_whole(tokenize=True)
    prefix = _shared(prompt_ids, ids)
    if prefix == len(prompt_ids):
        return ids[prefix:]
    text = render_whole(tokenize=False)
    prompt_text = render_text(processing_class, prompt, tools, chat_template_kwargs)
    if text.startswith(prompt_text):
        return encode_rest(tokenizer, text[len(prompt_text) :])
    # A template may write another generation header than the answer gets (for example with an empty thought that the
    # full conversation lacks). The completion then starts at the first difference.
    header = _generation_header(processing_class, prompt, tools, chat_template_kwargs)
    if not text.startswith(prompt_text[: len(prompt_text) - len(header)]):
        raise InvalidPairsError(
            "the chat template writes the prompt itself in another way once an answer follows (some move the system message, "
            "or leave out earlier thoughts), so that nobody can tell where `completion` begins. Put a system message's text "
            "into the user's message, give the answer's tokens as `completion_ids`, or use another template"
        )
    return ids[prefix:]


def _shared(beginning: Sequence[Any], whole: Sequence[Any]) -> int:
    """Returns the length of what two texts, or lists of tokens, begin with alike."""
    pairs = enumerate(zip(beginning, whole, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(beginning), len(whole)))


def continuation(
    processing_class: ProcessingClass, prompt_ids: list[int], ids: Sequence[int], skip_special_tokens: bool, text: str
) -> str:
    """Returns the text that continues a text prompt. It may begin with a space, which the `text` alone has lost."""
    decode = get_tokenizer(processing_class).decode
    before, whole = (decode(of, skip_special_tokens=skip_special_tokens) for of in (prompt_ids, [*prompt_ids, *ids]))
    return whole[len(before) :] if whole.startswith(before) else text


def _generation_header(
    processing_class: ProcessingClass,
    prompt: Prompt,
    tools: list[dict] | None,
    chat_template_kwargs: dict[str, Any] | None,
) -> str:
    """Returns what the chat template writes after a prompt's last message. A text, or a turn to continue, has nothing."""
    if isinstance(prompt, str) or is_prefilled(prompt):
        return ""
    probe = [*prompt[:-1], {**prompt[-1], "content": SENTINEL}]
    _, found, header = render_text(processing_class, probe, tools, chat_template_kwargs).rpartition(SENTINEL)
    return header if found else ""


def _append(prompt: list[Message], completion: Prompt) -> list[Message]:
    answer = {"role": "assistant", "content": completion} if isinstance(completion, str) else completion[0]
    if not is_prefilled(prompt):
        return [*prompt, answer]
    begun, answer = (_with_content(message, in_blocks=False) for message in (prompt[-1], answer))
    return [*prompt[:-1], {**begun, **answer, "content": begun["content"] + answer["content"]}]


def _apply_chat_template(
    processing_class: ProcessingClass,
    messages: list[Message],
    tools: list[dict] | None,
    chat_template_kwargs: dict[str, Any] | None,
    tokenize: bool,
    is_complete: bool = False,
) -> Any:
    tokenizer = get_tokenizer(processing_class)
    continued = not is_complete and is_prefilled(messages)
    # Templates of multimodal models may iterate over content blocks and silently drop a plain string; templates of
    # text models drop the blocks.
    in_blocks = isinstance(processing_class, ProcessorMixin)
    messages = [_with_content(message, in_blocks) for message in without_none(messages)]
    tools = without_none(tools) or None  # some templates print tool boilerplate for an empty list
    variables = without_none(chat_template_kwargs or {})
    check_messages(tokenizer, messages, tools=tools, chat_template_kwargs=variables)
    template = chat_template_of(processing_class)
    if isinstance(template, dict):
        template = template["tool_use" if tools and "tool_use" in template else "default"]
    what = f"The chat template, for the prompt that begins with {message_text(messages[0])[:60]!r},"
    write = partial(
        tokenizer.apply_chat_template,
        tools=tools,
        chat_template=template,
        continue_final_message=continued,
        tokenize=False,
        **variables,
    )
    start = 0
    with time_limit(RENDERING_SECONDS, what):
        check_variables(template, variables)
        check_roles(template, messages)
        is_asking = not is_complete and not continued
        rendered = write(messages, add_generation_prompt=is_asking)
        if writes_arguments_twice(rendered, messages):
            messages = with_objects(messages)
            rendered = write(messages, add_generation_prompt=is_asking)
        if is_complete:  # what the prompt says is no part of the completion
            with suppress(Exception):  # some templates refuse a prompt without its begun answer
                earlier = write(messages[:-1], add_generation_prompt=False)
                start = _shared(earlier, rendered)
    if len(rendered) > MOST_CHARACTERS:
        raise TimeLimitError(f"{what} writes {len(rendered)} characters, more than any model can read.")
    check_rendered(rendered[start:], messages, tools, is_complete)
    if tokenize:
        for message in messages[-1:] if is_complete else messages:
            _check_tokens(tokenizer, message_text(message))
    if not tokenize:
        return rendered
    if isinstance(processing_class, ProcessorMixin) and _has_own_way(
        processing_class, repr((chat_template_of(processing_class), tokenizer.bos_token))
    ):
        return _ids_of_processor(processing_class, rendered)
    return _ids_of_chat(processing_class, messages, rendered)


def _ids_of_chat(processing_class: ProcessingClass, prompt: Prompt, rendered: str) -> list[int]:
    tokenizer = get_tokenizer(processing_class)
    if adds_tokens(processing_class, prompt, rendered):
        return encode_text(tokenizer, rendered)
    return list(tokenizer(text=rendered, add_special_tokens=False)["input_ids"])


@lru_cache(maxsize=8)
def _has_own_way(processor: ProcessorMixin, template: str) -> bool:
    """Whether a processor adds more to the text of a chat than its tokenizer does, as Molmo 2's and Emu 3's add their beginning."""
    chat: list[Message] = [{"role": "user", "content": SENTINEL}]
    with suppress(Exception):  # a processor that reads no text alone, or a template for other chats
        rendered = str(_apply_chat_template(processor, chat, None, None, tokenize=False))
        return _ids_of_processor(processor, rendered) != _ids_of_chat(processor, chat, rendered)
    return False


def _ids_of_processor(processor: ProcessorMixin, rendered: str) -> list[int]:
    """Returns the token ids of a rendered chat as `processor.apply_chat_template` does, without those of an end."""
    tokenizer = get_tokenizer(processor)
    is_begun = tokenizer.bos_token is not None and rendered.startswith(tokenizer.bos_token)
    ids = processor(text=rendered, **({"add_special_tokens": False} if is_begun else {}))["input_ids"]
    return _without_end(tokenizer, [int(token) for token in (ids if isinstance(ids[0], int) else ids[0])])


def adds_tokens(processing_class: ProcessingClass, prompt: Prompt, rendered: str) -> bool:
    """
    Whether the tokenizer adds tokens of its own, such as one of the beginning, to a rendered prompt: to a text, and, as in
    transformers' `ProcessorMixin.apply_chat_template`, to what a processor's chat template writes without that token.
    """
    if isinstance(prompt, str) or not isinstance(processing_class, ProcessorMixin):
        return isinstance(prompt, str)
    bos_token = get_tokenizer(processing_class).bos_token
    own, older = (
        getattr(processing_class, "text_kwargs", {}),
        getattr(processing_class.valid_processor_kwargs, "_defaults", {}).get("text_kwargs", {}),
    )
    is_on = {**own, **older}.get("add_special_tokens", True)
    return bool(is_on) and not (bos_token and rendered.startswith(bos_token))


def _check_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Raises [`InvalidPairsError`] if the tokenizer has no token for any part of a text."""
    if text.strip() and not tokenizer(text=text, add_special_tokens=False)["input_ids"]:
        raise InvalidPairsError(
            f"the tokenizer has no token for any of {text.strip()[:60]!r}: the model would read nothing"
        )


def _with_content(message: Message, in_blocks: bool) -> Message:
    """Returns the message with its text as a list of content blocks or as one string."""
    content = message.get("content")
    if in_blocks and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif not in_blocks and isinstance(content, list):
        content = "".join(block["text"] for block in content)
    return {**message, "content": content}


def has_equal_prompts(row: Mapping[str, Any]) -> bool:
    """Whether both prompts of a row are the same."""
    return bool(without_none(row["clean_prompt"]) == without_none(row["perturbed_prompt"]))


def encode_rest(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns the token ids of a text that goes on after others, without the space that some tokenizers put in front."""
    line, alone, after = (
        tokenizer(text=of, add_special_tokens=False)["input_ids"] for of in ("\n", text, f"\n{text}")
    )
    begins = tokenizer.convert_ids_to_tokens(alone[:1])
    may_be_in_front = begins and begins[0].startswith("\u2581")
    return after[len(line) :] if may_be_in_front and after[: len(line)] == line else alone


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns the token ids of a text, without those of an end that some tokenizers append."""
    return _without_end(tokenizer, tokenizer(text=text)["input_ids"])


def _without_end(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    if not ids or ids[-1] not in tokenizer.added_tokens_decoder:
        return ids
    appended = appended_tokens(tokenizer)
    return ids[: -len(appended)] if appended and ids[-len(appended) :] == appended else ids


def appended_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """
    Returns the tokens that the tokenizer appends to every text, such as its end-of-sequence token with `add_eos_token`, or BERT's `[SEP]`.
    """
    # Of a text that is not empty, since a token that is both the beginning and the end may be added on either side.
    plain, ids = (list(tokenizer(text="a", add_special_tokens=of)["input_ids"]) for of in (False, True))
    added = len(ids) - len(plain)
    before = next((place for place in range(added + 1) if plain and ids[place : place + len(plain)] == plain), added)
    return ids[before + len(plain) :]
