import re
import warnings
from pathlib import Path

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from peft import LoraConfig, PeftConfig, PeftModel, VeraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, QuantoConfig

from tests.helpers import on_policy
from tests.helpers.cards import card, make_trainer, read
from tests.helpers.chats import user
from tests.helpers.commits import COMMITS
from tests.helpers.models import make_model, make_pairs, make_tokenizer
from trl_consistency import ConsistencyError
from trl_consistency.config.consistency_config import METHODS
from trl_consistency.models.embedded_models import EMBEDDED, MODELS
from trl_consistency.models.folder_warnings import warn_of_revisions
from trl_consistency.perturbations.card import made_with
from trl_consistency.publishing import Result, add_results, write_results
from trl_consistency.publishing.page import RESULTS_END, RESULTS_START
from trl_consistency.trainer.card.facts import describe_data
from trl_consistency.trainer.card.papers import ORIGINS, name_methods


STACK = "[Consistency Training Along the Transformer Stack](https://huggingface.co/papers/2606.05817)"


pytestmark = pytest.mark.long


TOKEN = "hf_" + "x" * 34


def test_card_says_what_was_trained(tmp_path, cached_base):
    pairs = make_pairs(6, completion=False).add_column(
        "perturbation", ["suggested_answer/train-00", "suggested_answer/train-01", "typos/train-00"] * 2
    )
    trainer = make_trainer(
        tmp_path,
        "me/base",
        pairs=pairs,
        anchor_ratio=0.25,
        temperature=0.7,
        hub_token=TOKEN,
        hub_model_id="me/my-model",
    )
    trainer.train()
    trainer.evaluate()
    trainer.save_model()
    text, metadata = read(trainer)
    assert metadata["base_model"] == "me/base"
    assert metadata["base_model_revision"] == COMMITS["main"]
    assert metadata["library_name"] == "peft"
    assert {"trl", "trl-consistency", "consistency-training", "bct"} <= set(metadata["tags"])
    for fact in (
        "# my-model",
        f"[me/base](https://huggingface.co/me/base) (revision `{COMMITS['main']}`)",
        "| Objective | bct (weight 1) |",
        "| Reference | the base model, without the adapter |",
        "| Pairs | 6 (6 distinct clean prompts) |",
        "| Perturbations | suggested_answer 4, typos 2 (3 wordings) |",
        "| Wordings | suggested_answer train-00, train-01; typos train-00 |",
        "| Anchors | 25% of an epoch, from the pairs' own clean prompts |",
        "(temperature 0.7, top_p 1, top_k 0, at most 8 tokens)",
        "2 steps of 8 rows",
        "| Adapter | LoRA, rank 4, alpha 8 |",
        "- `eval_loss` ",
        "@article{chua2024bias,",
        "Entrench Misalignment",
    ):
        assert fact in text, fact


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("revision", [None, "main", "v1", COMMITS["v1"]])
def test_commit_of_a_base_model_that_is_loaded_by_name(tmp_path, cached_base, lora, revision):
    cached_base("v1")
    options = {"revision": revision} if revision else None
    _, metadata = card(make_trainer(tmp_path, "me/base", lora, model_init_kwargs=options))
    assert metadata["base_model_revision"] == COMMITS.get(revision or "main", revision)


def test_an_adapter_names_the_commit_of_its_base_model(tmp_path, cached_base, monkeypatch):
    cached_base("v1")
    trainer = make_trainer(tmp_path, "me/base", model_init_kwargs={"revision": "v1"})
    trainer.save_model()
    folder = trainer.args.output_dir
    assert PeftConfig.from_pretrained(folder).revision == COMMITS["v1"]
    with pytest.warns(UserWarning, match=f"at the revision {COMMITS['v1']}, and is measured at {COMMITS['main']}"):
        warn_of_revisions([folder], "me/base", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_revisions([folder], "me/base", "v1")
        monkeypatch.setitem(MODELS, EMBEDDED, lambda progress: tmp_path)
        warn_of_revisions([folder], EMBEDDED, None)


def test_an_adapter_that_is_trained_further_names_the_commit_that_it_was_trained_on(tmp_path, cached_base):
    base = AutoModelForCausalLM.from_pretrained("me/base")
    get_peft_model(base, LoraConfig(revision=COMMITS["v1"])).save_pretrained(tmp_path / "begun")
    assert PeftConfig.from_pretrained(tmp_path / "begun").revision == COMMITS["v1"]
    base = AutoModelForCausalLM.from_pretrained("me/base")
    model = PeftModel.from_pretrained(base, tmp_path / "begun", is_trainable=True)
    trainer = make_trainer(tmp_path / "further", model, lora=False)
    trainer.save_model()
    assert PeftConfig.from_pretrained(trainer.args.output_dir).revision == COMMITS["main"]
    with warnings.catch_warnings():  # trained on another model, of which no commit is known
        warnings.simplefilter("error")
        warn_of_revisions([tmp_path / "begun"], "me/another", None)


def test_commit_of_a_base_model_that_was_loaded_before(tmp_path, cached_base):
    model = AutoModelForCausalLM.from_pretrained("me/base")
    assert card(make_trainer(tmp_path, model))[1]["base_model_revision"] == COMMITS["main"]
    cached_base("v1")  # It could be either: nothing of the model says which it was loaded at.
    model = AutoModelForCausalLM.from_pretrained("me/base", revision="v1")
    assert "base_model_revision" not in card(make_trainer(tmp_path, model))[1]


@pytest.mark.parametrize("lora", [True, False])
def test_base_model_with_another_config_than_its_files(tmp_path, model_dir, lora, caplog):
    """An adapter does not keep it, and a whole model does."""
    for changes, expected in (({}, False), ({"rms_norm_eps": 0.5, "sliding_window": 8}, lora)):
        caplog.clear()
        model = AutoModelForCausalLM.from_pretrained(model_dir, **changes)
        text, data = card(make_trainer(tmp_path, model, lora))
        assert data.get("base_model_changes") == (list(changes) if expected else None)
        assert ("| Base model's config | changed in rms_norm_eps, sliding_window: " in text) == expected
        assert ("config differs from its files (rms_norm_eps, sliding_window)" in caplog.text) == expected


@pytest.mark.parametrize("lora", [True, False])
def test_no_local_path_and_no_token(tmp_path, lora, model_dir):
    trainer = make_trainer(tmp_path, str(model_dir), lora, hub_token=TOKEN)
    trainer.create_model_card(dataset_name=str(tmp_path / "pairs.jsonl"))
    text, metadata = read(trainer)
    assert "base_model" not in metadata
    assert "datasets" not in metadata
    assert TOKEN not in text
    assert not re.search(rf"{tmp_path}|{model_dir}|{Path.home()}|/tmp/", text)
    assert "a local model" in text
    # Of pairs with a missing fact, the card said the reverse: that the model learns to ignore it.
    assert (
        "to\nanswer a perturbed prompt (with an irrelevant cue, or without a fact) as it answers the clean one."
        in text
    )


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_card_stays_beside_its_weights(tmp_path, is_saved, caplog):
    """A run that was killed left its card beside the weights of the run before it, which were published with it."""
    first = make_trainer(tmp_path, make_model(), pairs=make_pairs(), learning_rate=1e-3)
    first.train()
    first.save_model()
    before, _ = read(first)
    second = make_trainer(
        tmp_path, make_model(), pairs=make_pairs(), learning_rate=2e-3, save_strategy="steps", save_steps=1
    )
    second.train()
    assert read(second)[0] == before
    assert "learning rate 0.002" in (Path(second.args.output_dir) / "checkpoint-1" / "README.md").read_text()
    assert "Its card stays until" in caplog.text
    if is_saved:
        second.save_model()
        second.create_model_card(dataset_name="me/pairs")
        text, metadata = read(second)
        assert "learning rate 0.002" in text
        assert metadata["datasets"] == "me/pairs"


def test_given_targets_and_full_fine_tuning(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), lora=False, pairs=make_pairs())
    trainer.create_model_card(tags="mine")
    text, metadata = read(trainer)
    assert "| Targets | given with the pairs (`completion` column) |" in text
    assert "the model's own answers to the clean prompts are the targets" not in text
    assert "unless the table above names given targets or another reference" in text
    assert "| Reference | the model as it was before training |" in text
    assert metadata["library_name"] == "transformers"
    assert "mine" in metadata["tags"]


@pytest.mark.parametrize("own", [False, True])
def test_a_merged_model_keeps_the_facts_of_the_adapter_that_was_trained(tmp_path, own, model_dir):
    """Of the whole model nothing is trainable: its own weights would be said to be 0 of so many."""
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    if own:
        torch.manual_seed(0)
        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    trainer = make_trainer(tmp_path, model, lora=not own)
    trainer.train()
    trainer.model = trainer.model.merge_and_unload()
    trainer.save_model()
    text, metadata = read(trainer)
    assert "| Adapter | LoRA, rank 4, alpha 8, since merged into the whole weights of this model |" in text
    assert "Trained weights" not in text
    reference = (
        "the model as it was before training, with its adapter" if own else "the base model, without the adapter"
    )
    assert f"| Reference | {reference} |" in text
    assert metadata["library_name"] == "transformers"
    assert text.count("AutoModelForCausalLM.from_pretrained") == 1
    assert (
        AutoModelForCausalLM.from_pretrained(tmp_path / "my-model").num_parameters() == make_model().num_parameters()
    )


def test_a_merged_model_is_not_saved_beside_the_adapter_it_was_merged_from(tmp_path, model_dir):
    """From such a folder the adapter would be loaded, on its base model."""
    trainer = make_trainer(tmp_path, str(model_dir))
    trainer.train()
    trainer.save_model()
    trainer.model = trainer.model.merge_and_unload()
    with pytest.raises(ConsistencyError, match=r"my-model holds an adapter, .* Choose another one"):
        trainer.save_model()
    assert not (tmp_path / "my-model" / "model.safetensors").exists()
    trainer.save_model(str(tmp_path / "merged"))


def test_whole_weights_that_are_frozen_again_were_trained(tmp_path, model_dir):
    trainer = make_trainer(tmp_path, str(model_dir), lora=False)
    trainer.train()
    trainer.model.requires_grad_(False)
    size = f"{trainer.model.num_parameters():,}"
    assert f"| Trained weights | {size} of {size}, no adapter |" in card(trainer)[0]


def test_every_method_has_an_origin():
    assert list(ORIGINS) == [*METHODS, "opct"]


def test_options_of_loading_that_did_nothing_are_not_named(tmp_path, cached_base):
    """The model was loaded before, at another commit and with another attention."""
    kwargs = {"attn_implementation": "eager", "revision": COMMITS["v1"]}
    model = AutoModelForCausalLM.from_pretrained("me/base")
    text, metadata = card(make_trainer(tmp_path / "1", model, pairs=make_pairs(), model_init_kwargs=kwargs))
    assert "eager" not in text
    assert metadata["base_model_revision"] == COMMITS["main"]
    by_name = {"attn_implementation": "eager"}
    text, _ = card(make_trainer(tmp_path / "2", "me/base", pairs=make_pairs(), model_init_kwargs=by_name))
    assert "attn_implementation eager" in text


def test_reference_of_another_name(tmp_path):
    reference = make_model(seed=1)
    reference.config._name_or_path = "me/teacher"
    trainer = on_policy.make_trainer(tmp_path, ref_model=reference)
    assert trainer._card_facts()["Reference"] == "another model (me/teacher)"


def test_act(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), method="act", layers=[-1])
    trainer.train()
    trainer.evaluate()
    text, metadata = card(trainer)
    assert "act" in metadata["tags"]
    for fact in (
        "trained with ACT ([Consistency Training Helps Stop Sycophancy and Jailbreaks](https://huggingface.co/papers/2510.27062)) to",
        "| Objective | act (weight 1) |",
        "| Compared blocks | 1 (of 2, counted from 0) |",
        "| ACT compares | the tokens that both prompts end with |",
        "| Reference | the base model, without the adapter |",
        f"| Reference checksum | {trainer.paired_loss.reference.checksum:x} |",
        "| Shared tokens | end of the two prompts: ",
        "- `eval_act_loss` ",
        "@article{irpan2025consistency,",
    ):
        assert fact in text, fact
    assert "| Targets |" not in text  # ACT needs none
    assert "chua2024bias" not in text
    assert "gautam2026stack" not in text


def test_bct_and_act_with_weights(tmp_path, model_dir):
    trainer = make_trainer(
        tmp_path,
        str(model_dir),
        lora=False,
        method=["bct", "act"],
        method_weights=[1.0, 1e-4],
        act_tokens="all",
        log_consistency_metrics=True,
        hub_token=TOKEN,
    )
    trainer.train()
    trainer.evaluate()
    text, _ = card(trainer)
    for fact in (
        "papers/2403.05518)) and ACT ([",
        "| Objective | bct (weight 1), act (weight 0.0001) |",
        "| Compared blocks | all 2 |",
        "| ACT compares | the tokens that both prompts end with, and those of the clean answer (which the paper does not) |",
        "| Reference | the model as it was before training (a frozen copy) |",
        "| Targets | the reference's own answers",
        ", no adapter |",
        "- `eval_bct_loss` ",
        "- `eval_activation_distance` ",
        "- `eval_reference_kl` ",
    ):
        assert fact in text, fact
    assert text.count("@article{") == 2
    assert "for the logged metrics alone" not in text
    assert TOKEN not in text
    assert not re.search(rf"{tmp_path}|{model_dir}|{Path.home()}|/tmp/", text)


def test_attct_and_mlpct_share_a_paper(tmp_path):
    model = make_model()
    model.set_attn_implementation("eager")
    text, _ = card(make_trainer(tmp_path, model, method=["attct", "mlpct"], mlp_distance="mse"))
    for fact in (
        f"trained with AttCT ({STACK}) and MLPCT ({STACK}) to",
        "| Shared tokens | content: ",
        "| MLPCT distance | mse |",
        "\n## Citation\n\n```bibtex\n@article{gautam2026stack,",
    ):
        assert fact in text, fact
    assert text.count("@article{") == 1


def test_shared_tokens_of_each_kind(tmp_path):
    """Those that both prompts end with stood there as their content."""
    trainer = make_trainer(tmp_path, make_model(), method=["act", "mlpct"])
    shared = trainer._card_facts()["Shared tokens"].split("; and ")
    alone = [
        make_trainer(tmp_path / method, make_model(), method=method)._card_facts()["Shared tokens"]
        for method in ("act", "mlpct")
    ]
    assert shared == alone
    assert alone[0].partition(": ")[2] != alone[1].partition(": ")[2]


def test_bct_and_kl_share_a_paper(tmp_path):
    text, _ = card(make_trainer(tmp_path, make_model(), method=["bct", "kl", "mlpct"]))
    assert text.count("@article{") == 2
    assert "}\n```\n\nVersions: " in text


def test_methods_in_words():
    assert name_methods(["mlpct"]) == f"MLPCT ({STACK})"
    assert re.fullmatch(r"BCT \(.+\), ACT \(.+\) and AttCT \(.+05817\)\)", name_methods(["bct", "act", "attct"]))


def test_pairs_that_share_little(tmp_path):
    rows = [
        {"clean_prompt": user("Why?"), "perturbed_prompt": user("I say so. Why?")},
        {"clean_prompt": user("Why?"), "perturbed_prompt": user("Why? I say so.")},
    ]
    text, _ = card(make_trainer(tmp_path, make_model(), method="act", pairs=Dataset.from_list(rows)))
    assert "; 1 of 2 share at most one token before the generation header |" in text
    left_out = {"clean_prompt": "One two three", "perturbed_prompt": "Four five six"}
    rows = [{"clean_prompt": "Why?", "perturbed_prompt": "I say so. Why?"}, left_out]
    trainer = make_trainer(tmp_path, make_model(), method="act", no_shared_span="drop", pairs=Dataset.from_list(rows))
    assert "; 1 of 2 share nothing (left out) |" in card(trainer)[0]


def test_answers_that_are_only_measured(tmp_path):
    text, _ = card(make_trainer(tmp_path, make_model(), method="act", log_consistency_metrics=True))
    assert re.search(r"\| Targets \| the reference's own answers .+; for the logged metrics alone \|", text)


@pytest.mark.parametrize(
    ("method", "reference"),
    [
        ("bct", "the model as it was before training, with its adapter"),
        ("act", "the model as it was before training, with its adapter (a frozen copy)"),
    ],
)
def test_reference_with_the_adapter_that_came_with_the_model(tmp_path, method, reference):
    model = get_peft_model(make_model(), LoraConfig(target_modules="all-linear"))
    text, _ = card(make_trainer(tmp_path, model, lora=False, method=method))
    assert f"| Reference | {reference} |" in text
    assert "| Adapter | LoRA, rank 8, alpha 8 |" in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"init_lora_weights": "olora"}])
def test_base_model_that_was_rounded_or_is_restored_by_the_adapter(tmp_path, model_dir, dtype, options):
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).float()
    model = get_peft_model(model, LoraConfig(target_modules=["q_proj"], **options))
    assert "on other weights" not in card(make_trainer(tmp_path, model, lora=False))[0]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ({"rank_pattern": {"q_proj": 2}}, " (others in some layers)"),
        ({"alpha_pattern": {"q_proj": 2}}, " (others in some layers)"),
        ({"rank_pattern": {"q_projj": 2}}, ""),  # which no layer is called
    ],
)
def test_adapters_with_several_ranks_say_so(tmp_path, pattern, said):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **pattern)
    assert f"| Adapter | LoRA, rank 4, alpha 8{said} |" in card(make_trainer(tmp_path, make_model(), lora=lora))[0]


def test_dropout_of_the_adapter(tmp_path):
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules=["q_proj"])
    assert (
        "| Adapter | LoRA, rank 4, alpha 8, dropout 0.05 |" in card(make_trainer(tmp_path, make_model(), lora=lora))[0]
    )


@pytest.mark.parametrize(("disable_dropout", "said"), [(True, ""), (False, ", dropout 0.05")])
def test_dropout_that_is_disabled_is_not_named(tmp_path, disable_dropout, said):
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules=["q_proj"])
    model = get_peft_model(make_model(), lora)
    trainer = on_policy.make_trainer(tmp_path, model=model, disable_dropout=disable_dropout, max_steps=1)
    assert trainer._card_facts()["Adapter"] == f"LoRA, rank 4, alpha 8{said}"
    trainer.train()
    assert trainer._card_facts()["Adapter"] == f"LoRA, rank 4, alpha 8{said}"


def test_adapters_of_other_kinds_have_no_alpha(tmp_path):
    text, _ = card(make_trainer(tmp_path, make_model(), lora=VeraConfig(r=4, target_modules=["q_proj"])))
    assert "| Adapter | VERA, rank 4 |" in text


def test_weights_that_are_trained_beside_the_adapter(tmp_path):
    adapter = LoraConfig(r=4, use_dora=True, use_rslora=True, modules_to_save=["lm_head", "lm_hed"], bias="lora_only")
    text, _ = card(make_trainer(tmp_path, make_model(), lora=adapter))
    assert (
        "| Adapter | DoRA, rank 4, alpha 8, rank-stabilised, and lm_head trained whole, and biases (lora_only) |"
        in text
    )


@pytest.mark.parametrize("tokens", [[3, 4], {"embed_tokens": [3, 4]}])
def test_tokens_that_are_trained_beside_the_adapter(tmp_path, tokens):
    adapter = LoraConfig(r=4, target_modules=["q_proj"], trainable_token_indices=tokens)
    text, _ = card(make_trainer(tmp_path, make_model(), lora=adapter))
    assert "| Adapter | LoRA, rank 4, alpha 8, and the embeddings of 2 token(s) |" in text


@pytest.mark.parametrize("bits", [4, 8, 32])
def test_metadata_say_that_the_weights_were_in_few_bits(tmp_path, bits):
    """`evaluate` reads it: on other weights, the adapter is another model."""
    trainer = make_trainer(tmp_path, make_model(), lora=LoraConfig(r=4, target_modules=["q_proj"]))
    if bits < 32:
        setattr(trainer.model, f"is_loaded_in_{bits}bit", True)
        trainer.model.config.quantization_config = BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
    _, metadata = card(trainer)
    assert {name for name in metadata if name.startswith("load_in")} == (
        {f"load_in_{bits}bit"} if bits < 32 else set()
    )


def test_another_quantization_is_named(tmp_path):
    """The card named float32 alone, and no command said that the adapter was measured on other weights."""
    model = make_model()
    model.config.quantization_config = QuantoConfig(weights="int4")
    trainer = make_trainer(tmp_path, model, lora=LoraConfig(r=4, target_modules=["q_proj"]))
    text, metadata = card(trainer)
    assert "| Adapter | LoRA, rank 4, alpha 8, on weights quantized with quanto |" in text
    assert metadata["quant_method"] == "quanto"


@pytest.mark.parametrize("options", [{"init_lora_weights": "olora"}, {"bias": "all"}])
def test_reference_with_an_adapter_that_changes_the_base(tmp_path, options):
    adapter = LoraConfig(r=4, target_modules="all-linear", **options)
    text, _ = card(make_trainer(tmp_path, make_model(), lora=adapter, method="act"))
    assert "| the model as it was before training, with the adapter as it was initialised (a frozen copy) |" in text


def test_results_are_put_in_and_replaced(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs())
    trainer.create_model_card()
    before, _ = read(trainer)
    for value in (1, 2):
        write_results(trainer.args.output_dir, [Result(metric="accuracy", value=value)])
        add_results(trainer.args.output_dir)
    text, metadata = read(trainer)
    section = f"## Results\n\n{RESULTS_START}\n\n|  | after |\n| --- | --- |\n| accuracy | 2 |\n\n{RESULTS_END}\n\n"
    assert f"{section}## Training\n" in text
    assert text.split("---\n", 2)[2].replace(section, "").strip() == before.split("---\n", 2)[2].strip()
    (score,) = metadata["model-index"][0]["results"][0]["metrics"]
    assert (score["type"], score["value"]) == ("accuracy", 2)


def test_compositions_are_counted_by_all_their_names():
    kinds = ["authority/train-00+typos/train-03", "authority/train-00", "authority/train-01+typos/train-03"]
    facts = describe_data(Dataset.from_dict({"clean_prompt": ["a"] * 3, "perturbation": kinds}))
    assert facts["Perturbations"] == "authority+typos 2, authority 1 (3 wordings)"


def test_wordings_of_compositions_are_counted_once_each():
    """Each combination of them counted as a wording."""
    kinds = [f"authority/train-0{one}+typos/train-0{two}" for one in range(3) for two in range(3)]
    facts = describe_data(Dataset.from_dict({"clean_prompt": ["a"] * 9, "perturbation": kinds}))
    assert facts["Perturbations"] == "authority+typos 9 (6 wordings)"


def test_rows_with_two_equal_prompts_are_said_to_be_anchors(tmp_path):
    """They counted as pairs, as if each had a cue."""
    pairs = make_pairs(8).to_list()
    pairs[5:] = [{**row, "perturbed_prompt": row["clean_prompt"]} for row in pairs[5:]]
    text, _ = card(make_trainer(tmp_path, make_model(), pairs=Dataset.from_list(pairs)))
    assert "| Pairs | 8 (8 distinct clean prompts), of which 3 are anchors (two equal prompts) |" in text


@pytest.mark.parametrize(
    ("of_rows", "of_run", "expected"),
    [
        ([{"no_think": True}] * 8, None, {"no_think": True}),
        (['{"no_think": true}'] * 8, None, {"no_think": True}),
        ([{"no_think": True}] * 7 + [None], None, None),
        ([{"no_think": True}] * 7 + [None], {"no_think": True}, {"no_think": True}),
        ([{"no_think": False}] * 7 + [None], {"no_think": True}, None),
    ],
)
def test_variables_that_all_pairs_have_of_their_own_are_on_the_card(tmp_path, of_rows, of_run, expected):
    """`targets` writes them into each row. The example, and `evaluate`, which reads the metadata, left them out."""
    pairs = make_pairs(8).add_column("chat_template_kwargs", of_rows)
    text, metadata = card(make_trainer(tmp_path, make_model(), pairs=pairs, chat_template_kwargs=of_run))
    assert metadata.get("chat_template_kwargs") == expected
    assert ("return_dict=True, no_think=True" in text) == bool(expected)


@pytest.mark.parametrize("of_run", [{"no_think": False}, {"no_think": True}])
def test_variables_that_the_rows_replace_are_warned_about(tmp_path, caplog, of_run):
    """The targets are of an earlier recipe, whose variables they keep. The card said that those of the present one were used."""
    pairs = make_pairs(8).add_column("chat_template_kwargs", [{"no_think": True}] * 8)
    text, _ = card(make_trainer(tmp_path, make_model(), pairs=pairs, chat_template_kwargs=of_run))
    is_replaced = of_run != {"no_think": True}
    assert (
        '`chat_template_kwargs` is `{"no_think": false}`, and every row of `train_dataset`' in caplog.text
    ) == is_replaced
    assert 'chat_template_kwargs {"no_think": true}' in text
    assert '{"no_think": false}' not in text


def test_pairs_without_a_perturbation_are_no_wording():
    dataset = Dataset.from_list([{"clean_prompt": "a", "perturbation": of} for of in ("typos/train-00", None, None)])
    assert describe_data(dataset)["Perturbations"] == "without a name 2, typos 1 (1 wordings)"


def test_perturbations_may_be_numbered_classes():
    names = ["fiction/train-00", "role_play/train-01"]
    features = Features({"clean_prompt": Value("string"), "perturbation": ClassLabel(names=names)})
    facts = describe_data(Dataset.from_dict({"clean_prompt": ["a"] * 3, "perturbation": [0, 1, 1]}, features=features))
    assert facts["Perturbations"] == "role_play 2, fiction 1 (2 wordings)"
    assert facts["Wordings"] == "fiction train-00; role_play train-01"


def test_names_without_a_wording_are_not_counted_as_wordings():
    """A user's own names say nothing of how many texts stand behind them."""
    own = Dataset.from_list([{"clean_prompt": "a", "perturbation": of} for of in ("peer pressure", "authority", "")])
    assert describe_data(own)["Perturbations"] == "peer pressure 1, authority 1, without a name 1"
    mixed = Dataset.from_list([{"clean_prompt": "a", "perturbation": of} for of in ("authority", "typos/train-00")])
    assert describe_data(mixed)["Perturbations"] == "authority 1, typos 1 (1 wordings)"


def test_perturbation_names_cannot_break_the_table():
    facts = describe_data(Dataset.from_dict({"clean_prompt": ["a"], "perturbation": ["x | y\n/1"]}))
    assert facts["Perturbations"] == "x  y 1 (1 wordings)"


def test_targets_that_were_made_anew_or_otherwise_than_by_default(tmp_path):
    options = {"num_train_epochs": 2, "max_steps": -1, "regenerate_targets_every": 1, "temperature": 0.0}
    options |= {"generation_kwargs": {"num_beams": 2}, "repetition_penalty": 1.5}
    text, _ = card(make_trainer(tmp_path, make_model(), **options))
    targets = (
        "beam search, num_beams 2, repetition_penalty 1.5, at most 8 tokens), replaced every 1 epoch(s) by the trained"
    )
    assert targets in text


def test_targets_that_are_empty_are_counted(tmp_path, monkeypatch):
    """The card said that all pairs were trained on."""
    trainer = make_trainer(tmp_path, make_model(), keep_thinking=False)
    sampled = [
        make_tokenizer()(text)["input_ids"] for text in ["<think>Hm, Ly"] * 3 + ["<think>Hm.</think>Paris."] * 5
    ]
    monkeypatch.setattr("trl_consistency.trainer.target_maker.generate_targets", lambda *_, **__: sampled)
    trainer.train()
    assert "; empty for 3 of 8 pairs, whose thought did not end |" in card(trainer)[0]


def test_options_of_generation_whose_value_is_one(tmp_path):
    """They were left out as if they were off, as a `repetition_penalty` of 1 is."""
    kwargs = {"no_repeat_ngram_size": 1, "renormalize_logits": True}
    text, _ = card(make_trainer(tmp_path, make_model(), temperature=0.0, generation_kwargs=kwargs))
    assert "greedy, no_repeat_ngram_size 1, renormalize_logits True, at most" in text


GIVEN, MADE = "(`completion` column)", "(temperature 1, top_p 1, top_k 0, at most 8 tokens)"


@pytest.mark.parametrize(
    ("given", "targets"),
    [
        ((True, True), f"given with the pairs {GIVEN}"),
        ((True, False), f"given with the pairs {GIVEN}; of the anchors, the reference's own answers to their prompts {MADE}"),
        ((False, True), f"the reference's own answers to the clean prompts {MADE}; given with the anchors {GIVEN}"),
        ((False, False), f"the reference's own answers to the clean prompts {MADE}"),
    ],
)  # fmt: skip
def test_targets_of_anchors_with_prompts_of_their_own(tmp_path, given, targets):
    of_pairs, of_anchors = given
    anchors = make_pairs(3, of_anchors).rename_column("clean_prompt", "prompt").remove_columns("perturbed_prompt")
    options = {"pairs": make_pairs(completion=of_pairs), "anchors": anchors, "anchor_ratio": 0.08, "temperature": 1.0}
    trainer = make_trainer(tmp_path, make_model(), **options)
    trainer.create_model_card()
    text, _ = read(trainer)
    assert f"| Targets | {targets} |" in text
    assert "| Anchors | 8% of an epoch, from a data set of their own |" in text


@pytest.mark.parametrize(("ratio", "shown"), [(0.004, "0.4%"), (0.125, "12.5%"), (0.25, "25%")])
def test_a_small_share_of_anchors_is_not_none(tmp_path, ratio, shown):
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs(200), anchor_ratio=ratio)
    trainer.create_model_card()
    assert f"| Anchors | {shown} of an epoch" in read(trainer)[0]


@pytest.mark.parametrize("template", [False, True])
def test_pairs_that_were_left_out(tmp_path, model_dir, template):
    """With the template of another model, rows are rendered later, and the card did not count them."""
    pairs = make_pairs(8)
    longest = max(len(row[0]["content"]) for row in pairs["perturbed_prompt"])
    pairs = pairs.map(
        lambda row: {"completion": row["completion"] * (40 if row["completion"].startswith("City 3") else 1)}
    )
    options = {"max_length": longest + 120, "overlong": "drop"} | (
        {"chat_template_path": str(model_dir)} if template else {}
    )
    text, _ = card(make_trainer(tmp_path, make_model(), pairs=pairs, **options))
    assert "| Pairs | 8 (8 distinct clean prompts) |" in text
    assert "| Left out | 1 of these pairs" in text


def test_a_page_of_the_user_in_another_folder_is_kept(tmp_path, caplog):
    """The weights are saved there all the same."""
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs())
    data = f"---\nlicense: mit\n---\n{made_with('pairs')}\n"
    for place, text in (("notes", b"# Our notes\r\n"), ("data", data.encode())):
        page = tmp_path / place / "README.md"
        page.parent.mkdir()
        page.write_bytes(text)
        trainer.save_model(str(page.parent))
        assert page.read_bytes() == text
        assert (page.parent / "adapter_model.safetensors").is_file()
        assert f"{page.parent} has a README.md that is no model's card. It was kept" in caplog.text
    page.write_text("---\nlibrary_name: transformers\n---\n# An older card\n")
    trainer.save_model(str(page.parent))
    assert "An older card" not in page.read_text()
