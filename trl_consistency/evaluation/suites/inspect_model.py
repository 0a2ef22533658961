"""A local model, with or without an adapter, as an Inspect model (https://inspect.aisi.org.uk)."""

import math
from typing import Any

import anyio
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolChoice, ToolInfo
from transformers import GenerationConfig

from ...data.rendering import ProcessingClass, chat_template_of, get_tokenizer, render_prompt
from ...data.reply_header import header_length
from ...data.thinking import thought_span
from ...errors import ConsistencyError
from ...generation.model_identity import quick_identity
from ...generation.options import end_tokens, evaluating
from ...generation.targets import generate_targets
from ...models.checks import context_of
from ...models.folder_warnings import warn_of_folders, warn_of_loaded
from ...models.loading import check_adapters, load_model, put_adapter
from ..answers.replies import after_thinking, split_thought
from .reply_counts import Replies


# Options of Inspect that this provider follows, or that Inspect itself does, or that do not change what is answered
_KNOWN = (
    *("max_tokens", "temperature", "top_p", "top_k", "seed", "stop_seqs", "system_message", "max_connections"),
    *("cache", "cache_prompt", "batch", "max_retries", "timeout", "attempt_timeout", "stream_idle_timeout"),
    *("adaptive_connections", "max_tool_output", "parallel_tool_calls", "internal_tools", "reasoning_history"),
    *("extra_headers", "fail_on_refusal"),
)
_NEUTRAL = {"num_choices": 1, "best_of": 1, "reasoning_effort": "none"}


def _check_config(config: GenerateConfig) -> None:
    """Raises [`ConsistencyError`] for options that would have no effect."""
    for name in config.model_fields_set - {*_KNOWN}:
        if getattr(config, name) and getattr(config, name) != _NEUTRAL.get(name):
            raise ConsistencyError(f"The model provider `trl_consistency` does not know `{name}`. Leave it out.")
    for name, neutral in (("top_p", 1), ("top_k", 0)):
        if config.temperature is None and getattr(config, name) not in (None, neutral):
            raise ConsistencyError(
                f"`{name}` is given, but without a `temperature` the model provider `trl_consistency` samples nothing. Set one."
            )


class _Request:
    """A prompt that waits for its batch."""

    def __init__(self, prompt_ids: list[int], config: GenerateConfig):
        self.prompt_ids = prompt_ids
        self.config = config
        self.completion_ids: list[int] | None = None


class ConsistencyModelAPI(ModelAPI):
    """
    A local model, with or without an adapter, for Inspect. Prompts are rendered as in training, concurrent ones form a
    batch (of `max_connections`), and temperature 0 means greedy decoding.

    The model is loaded by its name, with the `adapter`, or given as `loaded_model` with its `processing_class`. Then
    `model_name` is only a label. `base_url` and `api_key` are not used. `replies` count what is answered.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        adapter: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        loaded_model: Any = None,
        processing_class: ProcessingClass | None = None,
        replies: Replies | None = None,
    ):
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        if loaded_model is None:
            adapters = [adapter] if adapter else []
            check_adapters(adapters, model_name)
            loaded_model, processing_class = load_model(model_name)
            warn_of_folders(model_name, adapters, processing_class, [chat_template_kwargs or {}])
            warn_of_loaded(model_name, adapters, loaded_model, processing_class)
            if adapter:
                loaded_model = put_adapter(loaded_model, adapter)
        if processing_class is None:
            raise ConsistencyError("A `loaded_model` needs its `processing_class`. Give its tokenizer or processor.")
        self.model = loaded_model
        self.processing_class: ProcessingClass = processing_class
        self.chat_template_kwargs = chat_template_kwargs
        # Inspect keeps answers (`--cache`, `generate(cache=True)`) by the model's name and this address. The name says neither which
        # adapter nor which weights it has.
        identity = quick_identity(loaded_model, chat_template_of(processing_class), chat_template_kwargs)
        self.base_url = f"trl_consistency:{identity}"
        self.replies = Replies() if replies is None else replies
        self.waiting: list[_Request] = []
        self.batches = 0
        self.generating: anyio.Lock | None = None

    def max_connections(self) -> int:
        return 32

    def max_tokens(self) -> int | None:
        return 512

    async def count_text_tokens(self, text: str) -> int:
        # Inspect's own estimate would download a vocabulary.
        return len(get_tokenizer(self.processing_class)(text=text, add_special_tokens=False)["input_ids"])

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        if tools:
            raise ConsistencyError(
                "The model provider `trl_consistency` does not call tools. Run a task without tools, or another provider."
            )
        _check_config(config)
        request = _Request(self._render(input), config)
        context = context_of(self.model)
        if context is not None and len(request.prompt_ids) >= context:
            raise ConsistencyError(
                f"A prompt has {len(request.prompt_ids)} tokens, which leaves no room in the context of {self.model_name}, {context}. It "
                f"begins with {input[0].text!r:.80}. Leave that sample out, or give fewer examples."
            )
        self.waiting.append(request)
        await anyio.sleep(0.01)  # lets the rest of the batch arrive
        self.generating = self.generating or anyio.Lock()
        async with self.generating:
            if request.completion_ids is None:
                batch = [other for other in self.waiting if other.config == config]
                batch.sort(key=lambda other: other is not request)  # this request first
                batch = batch[: config.max_connections or self.max_connections()]
                try:
                    await anyio.to_thread.run_sync(self._answer, batch)
                finally:  # Where it fails, the others go on waiting: their replies would be empty.
                    self.waiting = [
                        other for other in self.waiting if other is not request and other.completion_ids is None
                    ]
        return self._output(request)

    def _render(self, messages: list[ChatMessage]) -> list[int]:
        for message in messages:
            self._check_text(message)
        turns = [{"role": message.role, "content": message.text} for message in messages]
        if self.processing_class.chat_template or get_tokenizer(self.processing_class).chat_template:
            return render_prompt(self.processing_class, turns, chat_template_kwargs=self.chat_template_kwargs)
        if len(turns) > 1:
            raise ConsistencyError(
                f"{self.model_name} has no chat template, and a prompt has several turns. Use a model with a template, or a task whose "
                "prompts are one turn."
            )
        return render_prompt(self.processing_class, turns[0]["content"])

    def _check_text(self, message: ChatMessage) -> None:
        """Raises [`ConsistencyError`] for what no text says: the model would be asked something else."""
        parts = [] if isinstance(message.content, str) else message.content
        others = [part.type for part in parts if not isinstance(part, ContentText | ContentReasoning)]
        if message.role == "tool" or getattr(message, "tool_calls", None):
            others.append("a call of a tool, or its reply")
        if others:
            raise ConsistencyError(
                f"A prompt has {others[0]}, and the model provider `trl_consistency` gives models text alone. Leave that sample out, or use "
                "another provider."
            )

    def _answer(self, batch: list[_Request]) -> None:
        tokenizer, config = get_tokenizer(self.processing_class), batch[0].config
        sampling = {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k or 0}
        options = GenerationConfig(
            do_sample=bool(config.temperature),
            max_new_tokens=config.max_tokens or self.max_tokens(),
            pad_token_id=next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None),
            eos_token_id=end_tokens(self.model, self.processing_class),
            **(sampling if config.temperature else {}),
        )
        with evaluating(self.model):
            answers = generate_targets(
                self.model,
                [request.prompt_ids for request in batch],
                options,
                batch_size=len(batch),
                seed=(config.seed or 0) + self.batches,
                progress=False,
            )
        self.batches += 1
        for request, completion_ids in zip(batch, answers, strict=True):
            request.completion_ids = completion_ids

    def _output(self, request: _Request) -> ModelOutput:
        ids, config = request.completion_ids or [], request.config
        tokenizer = get_tokenizer(self.processing_class)
        end = thought_span(request.prompt_ids, ids, tokenizer)[1]  # the prompt may open the thought
        start = end + header_length(self.processing_class, ids[end:])
        thought, text = (tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:end], ids[start:]))
        thought = "".join(split_thought(thought))
        text = text.lstrip() if end else text  # a stop sequence of line breaks does not end it there
        # Generation does not stop at stop sequences: cut the answer there.
        stops = [place for stop in config.stop_seqs or () if (place := text.find(stop)) >= 0]
        answer = after_thinking(text[: min(stops, default=len(text))])
        is_ended = bool(ids) and ids[-1] in end_tokens(self.model, self.processing_class)
        is_cut = not stops and not is_ended and len(ids) == (config.max_tokens or self.max_tokens())
        is_long = len(request.prompt_ids) + len(ids) > (context_of(self.model) or math.inf)
        self.replies.note(tokenizer.decode(ids), is_cut or is_long)
        return ModelOutput(
            model=self.model_name,
            choices=[
                ChatCompletionChoice(
                    message=ChatMessageAssistant(content=answer, model=self.model_name, source="generate"),
                    stop_reason="model_length" if is_long else "max_tokens" if is_cut else "stop",
                )
            ],
            usage=ModelUsage(
                input_tokens=len(request.prompt_ids),
                output_tokens=len(ids),
                total_tokens=len(request.prompt_ids) + len(ids),
            ),
            # Tasks that read all of a message, and not its text alone, would take a thought in it for a part of the answer.
            metadata={"thought": thought} if thought else None,
        )
