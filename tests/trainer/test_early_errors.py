"""Errors that `ConsistencyTrainer` raises when it is made, before any weights load where the files show them."""

import pytest
from datasets import Dataset
from peft import AdaLoraConfig, LoraConfig, PeftModel, PromptTuningConfig, get_peft_model

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.paired import make_trainer
from tests.helpers.runs import LORA
from trl_consistency import ConsistencyError, ConsistencyTrainer, InvalidPairsError


@pytest.fixture
def no_weights(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded before the error")

    monkeypatch.setattr("trl.trainer.sft_trainer.create_model_from_path", refuse)


def faulty_trainer(tmp_path, model_dir, pairs=None, options=None, **arguments):
    return ConsistencyTrainer(
        model=str(model_dir),
        args=make_config(tmp_path, **(options or {})),
        train_dataset=make_pairs() if pairs is None else pairs,
        **arguments,
    )


@pytest.mark.usefixtures("no_weights")
class TestEarlyErrors:
    @pytest.mark.parametrize("name", ["compute_loss_func", "formatting_func", "data_collator"])
    def test_refused_arguments(self, tmp_path, model_dir, name):
        with pytest.raises(ConsistencyError, match=f"`{name}` is not available"):
            faulty_trainer(tmp_path, model_dir, **{name: lambda *_: 0})

    def test_no_dataset(self, tmp_path, model_dir):
        with pytest.raises(ConsistencyError, match="`train_dataset` is required"):
            ConsistencyTrainer(model=str(model_dir), args=make_config(tmp_path))

    def test_faulty_pairs(self, tmp_path, model_dir):
        with pytest.raises(InvalidPairsError, match="no column `clean_prompt`"):
            faulty_trainer(tmp_path, model_dir, make_pairs().remove_columns("clean_prompt"))

    def test_faulty_eval_pairs_are_named(self, tmp_path, model_dir):
        with pytest.raises(InvalidPairsError, match=r"`eval_dataset\['b'\]` is empty"):
            faulty_trainer(tmp_path, model_dir, eval_dataset={"a": make_pairs(), "b": make_pairs().select([])})

    def test_messages_without_chat_template(self, tmp_path, model_dir):
        with pytest.raises(InvalidPairsError, match="the tokenizer has no chat template"):
            faulty_trainer(tmp_path, model_dir, processing_class=make_tokenizer(chat_template=None))

    def test_anchors_without_prompt(self, tmp_path, model_dir):
        with pytest.raises(InvalidPairsError, match="`anchor_dataset` has no column `prompt`"):
            faulty_trainer(tmp_path, model_dir, options={"anchor_ratio": 0.1}, anchor_dataset=make_pairs())

    def test_anchors_without_ratio(self, tmp_path, model_dir):
        with pytest.raises(ConsistencyError, match="`anchor_ratio` is 0"):
            faulty_trainer(tmp_path, model_dir, anchor_dataset=Dataset.from_dict({"prompt": ["a"]}))

    def test_output_dir_not_writable(self, tmp_path, model_dir):
        (tmp_path / "file").touch()
        with pytest.raises(ConsistencyError, match=r"`output_dir` .* is not writable"):
            faulty_trainer(tmp_path / "file" / "out", model_dir)

    @pytest.mark.parametrize(
        ("options", "missing", "reason"),
        [
            ({"optim": "adamw_8bit"}, "bitsandbytes", r"`optim` adamw_8bit needs .*pip install bitsandbytes"),
            ({"optim": "paged_adamw_32bit"}, "bitsandbytes", "`optim` paged_adamw_32bit needs"),
            ({"use_liger_kernel": True}, "liger_kernel", "`use_liger_kernel` needs the package `liger_kernel`"),
            ({"report_to": "wandb"}, "wandb", "`report_to` names `wandb`, which is not installed"),
            (
                {"model_init_kwargs": {"attn_implementation": "flash_attention_2"}},
                "flash_attn",
                "`attn_implementation` flash_attention_2 needs",
            ),
        ],
    )
    def test_missing_extra(self, tmp_path, model_dir, monkeypatch, options, missing, reason):
        import importlib.util

        find_spec = importlib.util.find_spec
        monkeypatch.setattr(
            "trl_consistency.trainer.run.checks.find_spec", lambda name: None if name == missing else find_spec(name)
        )
        monkeypatch.setattr("trl_consistency.trainer.run.checks.get_available_reporting_integrations", lambda: [])
        with pytest.raises(ConsistencyError, match=reason):
            faulty_trainer(tmp_path, model_dir, options=options)

    def test_quantization_without_bitsandbytes(self, tmp_path, model_dir, monkeypatch):
        from transformers import BitsAndBytesConfig

        monkeypatch.setattr("trl_consistency.trainer.run.checks.find_spec", lambda name: None)
        with pytest.raises(ConsistencyError, match="`quantization_config` needs the package `bitsandbytes`"):
            faulty_trainer(tmp_path, model_dir, quantization_config=BitsAndBytesConfig(load_in_4bit=True))


@pytest.mark.parametrize("by_path", [False, True])
def test_the_tokenizer_of_another_model_is_refused(tmp_path, by_path):
    """Its vocabulary has as many tokens, which mean something else."""
    folder = tmp_path / "model"
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    make_trainer(tmp_path, model=str(folder))
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"A":', '"held":').replace('"B":', '"A":').replace('"held":', '"B":'))
    model = str(folder) if by_path else type(make_model()).from_pretrained(folder)
    with pytest.raises(
        ConsistencyError,
        match=r"`processing_class`: the data are read with .* '[AB]' is token \d+, and for .*model it is token",
    ):
        make_trainer(tmp_path, model=model)


def test_nothing_trainable(tmp_path):
    get_peft_model(make_model(), LoraConfig(**LORA)).save_pretrained(tmp_path / "adapter")
    model = PeftModel.from_pretrained(make_model(), tmp_path / "adapter")
    with pytest.raises(ConsistencyError, match="is_trainable=True"):
        make_trainer(tmp_path, model=model)


def test_an_adapter_in_the_model_that_needs_calls_in_each_step(tmp_path):
    """It was trained without them, with ranks that nobody chose."""
    model = get_peft_model(make_model(), AdaLoraConfig(target_modules=["q_proj"], total_step=10))
    with pytest.raises(ConsistencyError, match="The adapter of the model is of the type ADALORA, which needs more"):
        make_trainer(tmp_path, model=model)


def test_an_end_token_beside_the_template_of_a_model(tmp_path, model_dir):
    """TRL took the end token of that model."""
    options = {"chat_template_path": str(model_dir), "eos_token": "<|endoftext|>"}
    with pytest.raises(ConsistencyError, match=r"`eos_token` is '<\|endoftext\|>', but TRL takes the end token of"):
        make_trainer(tmp_path, **options)


@pytest.mark.parametrize("kind", ["new", "in the model", "none"])
def test_an_adapter_beside_a_template_that_changes_the_embeddings(tmp_path, model_dir, kind):
    """It was saved with the embeddings, and could not be loaded on its base model."""
    vocabulary = 400  # of which the tokenizer uses 384
    arguments = {"lora": kind == "new", "chat_template_path": str(model_dir)}
    model = make_model(vocab_size=vocabulary)
    if kind == "in the model":
        model = get_peft_model(model, LoraConfig(**LORA))
    if kind == "none":
        assert make_trainer(tmp_path, model=model, **arguments).model.config.vocab_size == 384
        return
    with pytest.raises(ConsistencyError, match=r"TRL resizes the model's 400 embeddings to 384\. The adapter"):
        make_trainer(tmp_path, model=model, **arguments)
    make_trainer(tmp_path, lora=True, chat_template_path=str(model_dir))


@pytest.mark.parametrize("is_new", [True, False])
def test_a_learned_prompt_takes_a_part_of_the_context(tmp_path, is_new):
    """Rows beyond the last position that the model knows were trained on."""
    model, learned = make_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=500)
    with pytest.raises(InvalidPairsError, match="longer than the model's context of 12 tokens"):
        ConsistencyTrainer(
            model=model if is_new else get_peft_model(model, learned),
            args=make_config(tmp_path),
            train_dataset=make_pairs(),
            processing_class=make_tokenizer(),
            peft_config=learned if is_new else None,
        )
