"""The card's example in Python, and its command for vLLM."""

import re
from pathlib import Path

import pytest
import torch
from peft import LoraConfig

from tests.helpers.architectures import FOR_TEXTS, make
from tests.helpers.cards import card, make_trainer, read
from tests.helpers.commits import COMMITS
from tests.helpers.models import CHATML, make_model


pytestmark = pytest.mark.long


@pytest.mark.parametrize("lora", [True, False])
def test_the_snippet_runs(tmp_path, lora, model_dir, capsys):
    trainer = make_trainer(tmp_path, str(model_dir), lora)
    trainer.train()
    trainer.save_model()
    snippet = re.search(r"```python\n(.*?)```", read(trainer)[0], re.DOTALL).group(1)
    exec(snippet.replace("path/to/this/folder", trainer.args.output_dir), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("kind", ["qwen3_5_with_vision", "qwen2_5_vl", "gemma3_with_vision"])
@pytest.mark.parametrize("lora", [True, False])
def test_the_snippet_loads_the_model_that_was_trained(tmp_path, kind, lora, capsys):
    """`AutoModelForCausalLM` takes another class for some, on which PEFT leaves out all weights of the adapter, or knows none."""
    make(kind, of_text=FOR_TEXTS).save_pretrained(tmp_path / "base")
    trainer = make_trainer(tmp_path, str(tmp_path / "base"), lora, learning_rate=0.1)
    trainer.train()
    trainer.save_model()
    snippet, names = re.search(r"```python\n(.*?)```", read(trainer)[0], re.DOTALL).group(1), {}
    places = {"path/to/this/folder": trainer.args.output_dir, "path/to/the/base/model": str(tmp_path / "base")}
    for place, folder in places.items():
        snippet = snippet.replace(place, folder)
    exec(snippet, names)
    trained = trainer.model.eval()
    ids = names["inputs"]["input_ids"]
    with torch.no_grad():
        expected, found = (of(input_ids=ids).logits for of in (trained, names["model"].float()))
    torch.testing.assert_close(found, expected)
    base = type(make(kind)).from_pretrained(tmp_path / "base")
    assert not torch.allclose(base(input_ids=ids).logits, expected, atol=1e-3)


def test_example_names_the_bits_of_the_weights(tmp_path):
    """It said that an adapter of 8-bit weights was trained on 4-bit ones."""
    trainer = make_trainer(tmp_path, make_model(), lora=LoraConfig(r=4, target_modules=["q_proj"]))
    trainer.model.is_loaded_in_8bit = True
    text, _ = card(trainer)
    assert "# The adapter was trained on 8-bit weights.\nquantized = BitsAndBytesConfig(load_in_8bit=True)\n" in text
    assert "4-bit" not in text


@pytest.mark.parametrize("variables", [None, {"no_think": True}])
def test_variables_of_the_chat_template_are_in_metadata_and_example(tmp_path, variables):
    """The example asked with other prompts than those of the training."""
    text, metadata = card(make_trainer(tmp_path, make_model(), chat_template_kwargs=variables))
    assert metadata.get("chat_template_kwargs") == variables
    shown = ", no_think=True" if variables else ""
    assert f'add_generation_prompt=True, return_tensors="pt", return_dict=True{shown})\n' in text
    assert ('the variables of the chat template are `{"no_think": true}`, as in training' in text) == bool(variables)


def served(text):
    return re.findall(r"^vllm serve .*$", text, re.MULTILINE)


def test_card_says_how_vllm_serves_the_adapter(tmp_path, cached_base):
    """`tests/rollouts/test_with_vllm.py` runs this command."""
    lora = LoraConfig(r=12, target_modules=["q_proj"])
    (line,) = served(card(make_trainer(tmp_path, "me/base", lora))[0])
    assert line == (
        f"vllm serve me/base --revision {COMMITS['main']} --enable-lora --max-lora-rank 16 "
        "--lora-modules my-model=path/to/this/folder"
    )
    page = (Path(__file__).parents[3] / "docs" / "vllm.md").read_text()
    assert all(f"{flag} " in page for flag in ("--enable-lora", "--max-lora-rank"))


def test_the_command_of_vllm_is_one_line_of_whole_words(tmp_path, cached_base):
    """A space in the folder's name made two words of one, and a quotation mark left the shell waiting."""
    trainer = make_trainer(tmp_path, "me/base", LoraConfig(r=4, target_modules=["q_proj"]))
    trainer.args.output_dir = str(tmp_path / "my 'first' run=1")
    text, metadata = card(trainer)
    (line,) = served(text)
    assert line.endswith(" --lora-modules my-first-run-1=path/to/this/folder")
    assert "offers the adapter as the model `my-first-run-1`" in text
    assert metadata["model_name"] == "my 'first' run=1"


@pytest.mark.parametrize("token", ["<|endoftext|>", None])
def test_answers_end_where_they_did_in_training(tmp_path, cached_base, token):
    """The base model does not stop at a token of the training's own, so that the example went on behind the answer."""
    trainer = make_trainer(tmp_path, "me/base", LoraConfig(r=4, target_modules=["q_proj"]), eos_token=token)
    text, _ = card(trainer)
    assert ("max_new_tokens=128, eos_token_id=tokenizer.eos_token_id)" in text) == (token is not None)
    assert ("Give `stop_token_ids` `[0]` with each request" in text) == (token is not None)


@pytest.mark.parametrize("is_own", [True, False])
def test_card_says_that_vllm_needs_the_chat_template_of_the_training(tmp_path, cached_base, is_own):
    """vLLM renders prompts with that of the base model, and takes none from an adapter."""
    path = tmp_path / "own.jinja"
    path.write_text(CHATML)
    options = {"chat_template_path": str(path)} if is_own else {}
    trainer = make_trainer(tmp_path, "me/base", LoraConfig(r=4, target_modules=["q_proj"]), **options)
    text, _ = card(trainer)
    assert ("give vLLM the file `chat_template.jinja` of the adapter, with `--chat-template`" in text) == is_own


@pytest.mark.parametrize(
    "lora",
    [
        LoraConfig(r=4, use_dora=True),
        LoraConfig(r=4, bias="lora_only"),
        LoraConfig(r=4, alpha_pattern={"q_proj": 64}),  # of which vLLM reads nothing in the folder
        LoraConfig(r=4, rank_pattern={"q_proj": 2}),
        None,
    ],
)
def test_no_card_says_so_of_what_vllm_cannot_serve(tmp_path, model_dir, lora):
    if lora is not None:
        lora.target_modules = ["q_proj"]
    assert served(card(make_trainer(tmp_path, str(model_dir), lora))[0]) == []


def test_a_pattern_that_fits_no_layer_changes_nothing_for_vllm(tmp_path, model_dir):
    lora = LoraConfig(r=4, rank_pattern={"q_projj": 2}, alpha_pattern={"v_proj": 64}, target_modules=["q_proj"])
    assert len(served(card(make_trainer(tmp_path, str(model_dir), lora))[0])) == 1


@pytest.mark.vllm
def test_vllm_knows_the_flags_of_the_card(tmp_path, cached_base):
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    (line,) = served(card(make_trainer(tmp_path, "me/base", LoraConfig(r=4, target_modules=["q_proj"])))[0])
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(line.split()[2:])
    assert parsed.enable_lora
    assert [(module.name, module.path) for module in parsed.lora_modules] == [("my-model", "path/to/this/folder")]
