"""The names of a model and of its base model on a page, and in the examples that load them from where they are published."""

import json

import pytest
from huggingface_hub import ModelCard

from tests.helpers.publishing import RESULTS, read_card, set_config
from trl_consistency.publishing import write_results
from trl_consistency.publishing.page import LOCAL_BASE, LOCAL_REPO, prepare_page


def test_local_base_model_is_named(adapter_dir):
    card = (adapter_dir / "README.md").read_text()
    (adapter_dir / "README.md").write_text(
        card.replace("base_model: Qwen/Qwen3-4B-Instruct-2507\nbase_model_revision: abc123\n", "").replace(
            "[Qwen](https://huggingface.co/Qwen/Qwen3-4B-Instruct-2507)", "a local model"
        )
    )
    set_config(adapter_dir, base_model_name_or_path="/data/base")
    text, metadata = read_card(adapter_dir, base_model="me/base")
    assert metadata["base_model"] == "me/base"
    assert "An adapter for [me/base](https://huggingface.co/me/base), from `me/bct`" in text


def test_tag_of_a_local_base_model_names_that_on_the_hub(adapter_dir):
    """PEFT writes the base model into a tag of its cards, too: a path of this machine was sent."""
    path = adapter_dir / "README.md"
    card = ModelCard.load(path)
    card.data.tags = ["base_model:adapter:/home/me/base", "dpo"]
    card.data.base_model_weights = "0" * 20  # of the files there
    card.save(path)
    set_config(adapter_dir, base_model_name_or_path="/home/me/base")
    text, metadata = read_card(adapter_dir, base_model="me/base")
    assert metadata["tags"] == ["base_model:adapter:me/base", "dpo"]
    assert "base_model_weights" not in metadata
    assert "/home/me" not in text


def test_other_mentions_of_local_models_stay(adapter_dir):
    """The first one became the base model: "The judge was Qwen3-4B"."""
    path = adapter_dir / "README.md"
    path.write_text(path.read_text() + "\nThe judge was a local model.\n")
    assert "The judge was a local model." in read_card(adapter_dir)[0]


def test_revision_stays_with_a_base_model_in_a_list(adapter_dir):
    path = adapter_dir / "README.md"
    path.write_text(path.read_text().replace("base_model: Qwen", "base_model:\n- Qwen"))
    metadata = read_card(adapter_dir)[1]
    assert (metadata["base_model"], metadata["base_model_revision"]) == ("Qwen/Qwen3-4B-Instruct-2507", "abc123")


def test_revision_goes_with_its_base_model(adapter_dir):
    assert read_card(adapter_dir)[1]["base_model_revision"] == "abc123"
    assert "base_model_revision" not in read_card(adapter_dir, base_model="me/other")[1]


def test_example_loads_the_model_from_where_it_is_published(adapter_dir):
    path = adapter_dir / "README.md"
    example = (
        'model = AutoPeftModelForCausalLM.from_pretrained("path/to/this/folder", quantization_config=quantized)\n'
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")\n'
    )
    path.write_text(path.read_text() + f"\n```python\n{example}```\n")
    for repo_id in ("me/bct", "lab/bct"):
        path.write_bytes(prepare_page(adapter_dir, repo_id)["README.md"])
    assert example.replace("path/to/this/folder", "lab/bct") in path.read_text()


def test_vllm_serves_the_model_from_where_it_is_published(adapter_dir):
    path = adapter_dir / "README.md"
    command = "vllm serve {} --enable-lora --max-lora-rank 16 --lora-modules bct={}"
    path.write_text(
        path.read_text() + f"\n```bash\n{command.format('Qwen/Qwen3-4B-Instruct-2507', 'path/to/this/folder')}\n```\n"
    )
    path.write_bytes(prepare_page(adapter_dir, "me/bct")["README.md"])
    assert command.format("Qwen/Qwen3-4B-Instruct-2507", "me/bct") in path.read_text()
    assert (
        command.format("me/base", "lab/bct") in prepare_page(adapter_dir, "lab/bct", "me/base")["README.md"].decode()
    )
    path.write_text(path.read_text().replace("2507 --enable-lora", "2507 --revision abc123 --enable-lora"))
    text = prepare_page(adapter_dir, "lab/bct")["README.md"].decode()
    assert "vllm serve Qwen/Qwen3-4B-Instruct-2507 --revision abc123 --enable-lora" in text
    text = prepare_page(adapter_dir, "lab/bct", "me/base")["README.md"].decode()
    assert command.format("me/base", "lab/bct") in text, "the revision is the other base model's"


@pytest.mark.parametrize("options", ["", ", quantization_config=quantized"])
def test_example_loads_the_branch_that_it_is_published_on(adapter_dir, options):
    """From the main branch, it would load another model, or none."""
    path = adapter_dir / "README.md"
    written = path.read_text()
    examples = (
        '\nmodel = AutoPeftModelForCausalLM.from_pretrained("{repo}"{branch}{options})\n'
        'tokenizer = AutoTokenizer.from_pretrained("{repo}"{branch})\n'
        "vllm serve Qwen/Qwen3-4B-Instruct-2507 --enable-lora --lora-modules bct={served}\n"
    )

    def shown(repo, branch="", served=None):
        return examples.format(repo=repo, branch=branch, options=options, served=served or repo)

    path.write_text(written + shown("path/to/this/folder"))
    of_v2 = shown("me/bct", ', revision="v2"', "$(hf download me/bct --revision v2 --quiet)")
    for revision, expected in (("v2", of_v2), ("v2", of_v2), (None, shown("me/bct")), ("main", shown("me/bct"))):
        path.write_bytes(prepare_page(adapter_dir, "me/bct", revision=revision)["README.md"])
        assert expected in path.read_text()


def test_example_with_a_class_of_its_own(adapter_dir):
    """As `templates/model_card.md` has it for a model with a vision tower."""
    path = adapter_dir / "README.md"
    base, written = "Qwen/Qwen3-4B-Instruct-2507", path.read_text()
    example = (
        'base = Qwen3_5ForConditionalGeneration.from_pretrained("{base}"{of_base})\n'
        'model = PeftModel.from_pretrained(base, "{repo}"{branch})\n'
        'tokenizer = AutoTokenizer.from_pretrained("{repo}"{branch})\n'
    )
    of_base, branch = ', revision="abc123"', ', revision="v2"'
    path.write_text(written + example.format(base=base, of_base=of_base, repo="path/to/this/folder", branch=""))
    for name, revision in (("me/bct", "v2"), ("lab/bct", None)):
        path.write_bytes(prepare_page(adapter_dir, name, revision=revision)["README.md"])
        shown = example.format(base=base, of_base=of_base, repo=name, branch=branch if revision else "")
        assert shown in path.read_text()
    text = prepare_page(adapter_dir, "lab/bct", "me/base")["README.md"].decode()
    assert example.format(base="me/base", of_base="", repo="lab/bct", branch="") in text
    whole = example.partition("\n")[2].replace(
        "PeftModel.from_pretrained(base, ", "MineForConditionalGeneration.from_pretrained("
    )
    path.write_text(written + whole.format(repo="path/to/this/folder", branch=""))
    assert whole.format(repo="me/bct", branch="") in read_card(adapter_dir)[0]


def test_a_revision_on_the_card_of_another_base_model_is_not_taken(adapter_dir):
    """PEFT would look for that commit on the page of a model that does not have it."""
    set_config(adapter_dir, base_model_name_or_path="me/other")
    changed = prepare_page(adapter_dir, "me/bct")
    assert json.loads(changed["adapter_config.json"])["revision"] is None
    assert "base_model_revision" not in changed["README.md"].decode()


def test_example_that_loads_the_base_model_stays(adapter_dir):
    path = adapter_dir / "README.md"
    base = "Qwen/Qwen3-4B-Instruct-2507"
    example = (
        f'model = AutoModelForCausalLM.from_pretrained("{base}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{base}")\n'
    )
    path.write_text(path.read_text() + example)
    assert example in read_card(adapter_dir)[0]


@pytest.mark.parametrize("is_first", [True, False])
def test_examples_of_other_models_stay(adapter_dir, is_first):
    """They loaded this one."""
    path = adapter_dir / "README.md"
    example = (
        'model = AutoPeftModelForCausalLM.from_pretrained("{0}")\ntokenizer = AutoTokenizer.from_pretrained("{0}")\n'
        "vllm serve Qwen/Qwen3-4B-Instruct-2507 --enable-lora --lora-modules one={0}\n"
    )
    ours, others = (f"\n{example.format(name)}" for name in ("path/to/this/folder", "me/act"))
    path.write_text(path.read_text() + (others + ours if is_first else ours + others))
    text = read_card(adapter_dir)[0]
    assert example.format("me/act") in text
    assert example.format("me/bct") in text
    if not is_first:
        path.write_text(text)
        text = prepare_page(adapter_dir, "lab/bct")["README.md"].decode()
        assert example.format("me/act") in text
        assert example.format("lab/bct") in text


def test_text_names_the_base_model_that_the_metadata_name(adapter_dir):
    path = adapter_dir / "README.md"
    path.write_text(path.read_text().replace("507),", "507) (revision `abc123`),"))
    with pytest.warns(
        UserWarning, match="names Qwen/Qwen3-4B-Instruct-2507 as its base model, and is loaded with me/base"
    ):
        text, metadata = read_card(adapter_dir, base_model="me/base")
    assert metadata["base_model"] == "me/base"
    assert "An adapter for [me/base](https://huggingface.co/me/base), from `me/bct`." in text


def test_the_command_for_vllm_gets_both_names(adapter_dir):
    with (adapter_dir / "README.md").open("a") as card:
        card.write(f"vllm serve {LOCAL_BASE} --lora-modules bct={LOCAL_REPO}\n")
    text = prepare_page(adapter_dir, "me/bct", "me/base")["README.md"].decode()
    assert "vllm serve me/base --lora-modules bct=me/bct\n" in text


def test_whole_model_needs_no_base_model(adapter_dir):
    (adapter_dir / "adapter_config.json").unlink()
    write_results(adapter_dir, RESULTS)
    assert list(prepare_page(adapter_dir, "me/bct")) == ["README.md"]
