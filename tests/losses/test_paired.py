"""The objectives on ragged batches against the definitions, pair by pair, on every architecture."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.helpers.architectures import (
    ATTENTION_IN,
    CONFIGS,
    DOWN_PROJECTION_OF,
    HYBRIDS,
    MLP_IN,
    WITHOUT_MLP,
    add_lora,
    make,
)
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.prompts import mutations
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.data.alignment import content_range, shared_content_span
from trl_consistency.data.collators import PairCollator
from trl_consistency.data.rendering import render_prompt
from trl_consistency.losses import paired
from trl_consistency.losses.paired import Objectives, PairedLoss
from trl_consistency.objectives.divergence import shared_head_divergence
from trl_consistency.passes.capture import capture_states
from trl_consistency.passes.reference import Reference


# Clean head, perturbed head, shared tokens, completion: ragged, clean longer than perturbed and the reverse, an anchor
# (first row), two perturbations of one clean prompt (rows 2 and 3), and a pair that shares nothing.
SHAPES = ((0, 0, 6, 3), (2, 5, 4, 2), (1, 4, 3, 4), (1, 2, 3, 4), (6, 1, 1, 1), (3, 2, 0, 2))


def make_rows(with_content_span=True):
    generator = torch.Generator().manual_seed(3)

    def ids(length):
        return torch.randint(3, 60, (length,), generator=generator).tolist()

    rows = []
    for clean, perturbed, shared, answer in SHAPES:
        suffix, completion = ids(shared), ids(answer)
        clean_ids = ids(clean) + suffix
        perturbed_ids = [61] * perturbed + suffix
        if rows and len(rows) == 3:
            # The second perturbation of the clean prompt before
            clean_ids, completion = rows[2]["clean_ids"], rows[2]["completion_ids"]
            perturbed_ids = [61] * perturbed + clean_ids[1:]
        rows.append({"clean_ids": clean_ids, "perturbed_ids": perturbed_ids, "completion_ids": completion})
        if with_content_span:
            # The shared content ends before the suffix does, where it can.
            length = max(shared - 1, min(shared, 1))
            rows[-1]["content_span"] = [len(clean_ids) - shared, len(perturbed_ids) - shared, length]
    return rows


def config(tmp_path, method, **options):
    return make_config(tmp_path, method=method, **options)


def make_batch(rows, args):
    collator = PairCollator(pad_token_id=0, with_completions=args.needs_completions, with_reference=True)
    return collator(
        rows if args.compares_content else [{k: v for k, v in row.items() if k != "content_span"} for row in rows]
    )


# The definitions, on one pair without padding, from the whole model


def watch(model, ids, with_grad, attention=True):
    """Logits, what left each block, and by block what entered its down projection, and its attention map."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder = base.get_decoder()
    blocks = getattr(decoder, "layers", None) or decoder.h
    kind = base.config.get_text_config().model_type
    residual, mlp, handles = [], {}, []
    for layer, block in enumerate(blocks):
        handles.append(
            block.register_forward_hook(lambda m, i, out: residual.append(out if torch.is_tensor(out) else out[0]))
        )
        if kind in DOWN_PROJECTION_OF:
            has_mlp = layer in MLP_IN.get(kind, range(len(blocks)))
            down = block.get_submodule(DOWN_PROJECTION_OF[kind]) if has_mlp else None
        else:
            names = ("down_proj", "dense_4h_to_h", "c_proj")
            down = next((getattr(block.mlp, name) for name in names if hasattr(block.mlp, name)), None)
        if isinstance(down, torch.nn.Module):
            keep = partial(lambda layer, m, inputs: mlp.update({layer: inputs[0].view(len(ids), -1)}), layer)
            handles.append(down.register_forward_pre_hook(keep))
    try:
        with torch.set_grad_enabled(with_grad):
            outputs = base(input_ids=torch.tensor([ids]), output_attentions=attention, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    maps = outputs.attentions or []
    return {
        "logits": outputs.logits[0].float(),
        "residual": [state[0] for state in residual],
        "mlp": mlp,
        "attention": {
            layer: state[0] for layer, state in zip(ATTENTION_IN.get(kind, range(len(maps))), maps, strict=True)
        },
    }


def jensen_shannon(p, q):
    p, q = p / p.sum(), q / q.sum()
    m = (p + q) / 2
    # Keys outside a sliding window have no probability on either side.
    return sum((a[a > 0] * (a[a > 0] / m[a > 0]).log()).sum() / 2 for a in (p, q))


def naive_pair(method, student, reference, row, layers, act_tokens="prompt", mlp_distance="cosine"):
    """Sum over what the objective counts in the pair, and how much that is."""
    clean_ids, perturbed_ids, completion = (row[key] for key in ("clean_ids", "perturbed_ids", "completion_ids"))
    if method in ("bct", "kl"):
        ours = student["logits"][len(perturbed_ids) - 1 : -1].log_softmax(-1)
        if method == "bct":
            return F.nll_loss(ours, torch.tensor(completion), reduction="sum"), len(completion)
        theirs = reference["logits"][len(clean_ids) - 1 : -1].log_softmax(-1)
        return (theirs.exp() * (theirs - ours)).sum(), len(completion)
    if method == "act":
        length = 0
        while (
            length < min(len(clean_ids), len(perturbed_ids)) and clean_ids[-1 - length] == perturbed_ids[-1 - length]
        ):
            length += 1
        clean, perturbed = len(clean_ids) - length, len(perturbed_ids) - length
        if act_tokens == "completion":
            clean, perturbed, length = len(clean_ids), len(perturbed_ids), 0
        if act_tokens != "prompt":
            length += len(completion)
        if not length:
            return torch.zeros(()), 0
        distances = [
            (
                student["residual"][layer][perturbed : perturbed + length]
                - reference["residual"][layer][clean : clean + length]
            )
            .square()
            .sum(-1)
            .mean()
            for layer in layers
        ]
        return torch.stack(distances).mean(), 1
    clean, perturbed, length = row["content_span"]
    total = torch.zeros(())
    layers = [layer for layer in layers if layer in student["mlp" if method == "mlpct" else "attention"]]
    for layer in layers:
        for offset in range(length):
            if method == "mlpct":
                a, b = student["mlp"][layer][perturbed + offset], reference["mlp"][layer][clean + offset]
                distance = {
                    "cosine": lambda a, b: 1 - (a @ b) / (a.norm() * b.norm()),
                    "mse": lambda a, b: (a - b).square().mean(),
                    "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b),
                }[mlp_distance](a, b)
            else:
                maps = student["attention"][layer], reference["attention"][layer]
                heads = [
                    jensen_shannon(
                        p[perturbed + offset, perturbed : perturbed + offset + 1],
                        q[clean + offset, clean : clean + offset + 1],
                    )
                    for p, q in zip(*maps, strict=True)
                ]
                distance = torch.stack(heads).mean()
            total = total + distance / len(layers)
    return total, length


def naive_losses(model, rows, args, layers):
    """Each objective over the batch, from one pair at a time."""
    sums, counts = dict.fromkeys(args.method, 0.0), dict.fromkeys(args.method, 0)
    for row in rows:
        completion = row["completion_ids"] if args.needs_completions else []
        student = watch(model, row["perturbed_ids"] + completion, with_grad=True)
        with model.disable_adapter():
            reference = watch(model, row["clean_ids"] + completion, with_grad=False)
        for method in args.method:
            total, count = naive_pair(method, student, reference, row, layers, args.act_tokens, args.mlp_distance)
            sums[method], counts[method] = sums[method] + total, counts[method] + count
    return {method: sums[method] / counts[method] for method in args.method}


def gradients(loss, model):
    parameters = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]


def check(tmp_path, model, method, layers=None, rows=None, **options):
    """Values and gradients of every objective alone, then of all together, equal the definitions."""
    args = config(tmp_path, method, layers=layers, **options)
    rows = rows or make_rows()
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in parameter_name)
    paired_loss = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=True))
    losses, _ = paired_loss(model, make_batch(rows, args))
    expected = naive_losses(model, rows, args, paired_loss.layers)
    got = {name: of_rows.sums.sum() / of_rows.counts.sum() for name, of_rows in losses.items()}
    for name in args.method:
        assert_close(got[name], expected[name], rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
    ours, theirs = gradients(sum(got.values()), model), gradients(sum(expected.values()), model)
    assert any(grad.abs().max() > 0 for grad in theirs)
    scale = max(grad.abs().max() for grad in theirs)
    for mine, naive in zip(ours, theirs, strict=True):
        assert (mine - naive).abs().max() <= 1e-5 * scale


def methods_of(kind):
    return ["bct", "kl", "act", "attct"] + ([] if kind in WITHOUT_MLP else ["mlpct"])


@pytest.mark.long
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layers", [None, [0, 2]])
def test_equals_the_definitions_on_every_architecture(tmp_path, kind, layers):
    check(tmp_path, add_lora(make(kind)), methods_of(kind), layers)


@pytest.mark.long
@pytest.mark.parametrize("kind", HYBRIDS)
@pytest.mark.parametrize("methods", [["bct", "kl", "act", "attct", "mlpct"], ["attct"], ["mlpct"]])
def test_hybrids_compare_the_blocks_that_have_such_a_state(tmp_path, kind, methods, caplog):
    model = add_lora(make(kind))
    check(tmp_path, model, methods)
    said = [record.getMessage() for record in caplog.records]
    kind = model.config.get_text_config().model_type
    with_attention = ATTENTION_IN[kind]
    others = ", ".join(str(layer) for layer in range(4) if layer not in with_attention)
    line = f"`attct` compares block(s) {with_attention[0]}. It leaves out {others}, which have no attention map."
    assert [message for message in said if "`attct` compares" in message] == ([line] if "attct" in methods else [])
    line = "`mlpct` compares block(s) 2. It leaves out 0, 1, 3, which have no MLP that all tokens pass."
    has_line = "mlpct" in methods and kind == "nemotron_h"
    assert [message for message in said if "`mlpct` compares" in message] == ([line] if has_line else [])


@pytest.mark.parametrize("kind", HYBRIDS)
def test_named_blocks_without_such_a_state_are_refused(kind):
    model = make(kind)
    attention = ATTENTION_IN[model.config.get_text_config().model_type]
    with pytest.raises(
        ConsistencyError,
        match=rf"^`attct` needs blocks with an attention map, and block 0, a `\w+`, has none. Leave `attct` out, or name "
        rf"blocks in `layers` that have one: {attention[0]}.$",
    ):
        PairedLoss(Objectives(["attct"], [0]), model, None)
    if kind == "nemotron_h":
        with pytest.raises(ConsistencyError, match=r"or name blocks in `layers` that have one: 2\.$"):
            PairedLoss(Objectives(["mlpct"], [0, 1]), model, None)


def test_no_block_after_the_last_compared_one_runs(tmp_path):
    model = make("qwen3_5")
    calls = []
    for layer, block in enumerate(model.model.layers):
        block.register_forward_hook(lambda *_, layer=layer: calls.append(layer))
    args = config(tmp_path, ["attct"])
    paired_loss = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=False))
    assert paired_loss.layers == [2]
    paired_loss(model, make_batch(make_rows(), args))
    assert set(calls) == {0, 1, 2}
    paired_loss.freeze_unused(model)
    assert not any(parameter.requires_grad for parameter in model.model.layers[3].parameters())


def test_the_mlp_beside_experts_that_a_router_chooses(tmp_path):
    """Granite's shared MLP has a layer of the same name as its experts, whose tokens are some of all."""
    torch.manual_seed(0)
    config = HYBRIDS["granitemoehybrid"]()
    config.num_local_experts, config.num_experts_per_tok = 4, 2
    model = add_lora(AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())
    assert model.get_base_model().model.layers[0].has_experts
    check(tmp_path, model, ["mlpct"])


@pytest.mark.parametrize("method", ["bct", "kl", "act", "attct", "mlpct"])
def test_each_alone(tmp_path, method):
    layers = [1, 2] if method in ("act", "attct", "mlpct") else None
    check(tmp_path, add_lora(make("qwen3")), [method], layers)


@pytest.mark.parametrize("act_tokens", ["prompt", "completion", "all"])
def test_act_tokens(tmp_path, act_tokens):
    check(tmp_path, add_lora(make("llama")), ["act"], [-1], act_tokens=act_tokens)


@pytest.mark.parametrize("mlp_distance", ["cosine", "mse", "smooth_l1"])
def test_mlp_distances(tmp_path, mlp_distance):
    check(tmp_path, add_lora(make("llama")), ["mlpct"], [0, 3], mlp_distance=mlp_distance)


def test_without_a_row_to_compare_the_loss_is_a_zero_that_can_be_differentiated(tmp_path):
    model = add_lora(make("llama"))
    args = config(tmp_path, ["act", "attct", "mlpct"])
    paired_loss = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=True))
    row = {**make_rows()[-1], "content_span": [0, 0, 0]}
    losses, _ = paired_loss(model, make_batch([row, row], args))
    for name, of_rows in losses.items():
        assert of_rows.sums.tolist() == of_rows.counts.tolist() == [0, 0], name
    total = sum(of_rows.sums.sum() for of_rows in losses.values())
    assert all((grad == 0).all() for grad in gradients(total, model))


def test_watched_quantities_are_the_objectives_of_the_same_name(tmp_path):
    """Whatever is trained on; and watching changes neither the loss nor its gradient."""
    model = add_lora(make("gemma2"))
    rows = make_rows()
    args = config(tmp_path, ["mlpct"], layers=[1, 2], log_consistency_metrics=True, log_layer_distances=True)
    plain = config(tmp_path, ["mlpct"], layers=[1, 2])
    objectives = config(tmp_path, ["bct", "kl", "act"], layers=[1, 2])
    results = []
    for options in (args, plain, objectives):
        paired_loss = PairedLoss(Objectives.of(options), model, Reference(model, adapter_off=True))
        results.append(paired_loss(model, make_batch(rows, options)))
    (losses, watched), (plain_losses, nothing), (named, _) = results
    assert nothing == {}
    assert_close(losses["mlpct"].sums, plain_losses["mlpct"].sums)
    assert_close(gradients(losses["mlpct"].sums.sum(), model), gradients(plain_losses["mlpct"].sums.sum(), model))
    assert rows[0]["clean_ids"] == rows[0]["perturbed_ids"]
    pairs = torch.tensor([0] + [1] * (len(rows) - 1))  # the first row is an anchor, which says nothing of consistency
    for name, method in {
        "response_cross_entropy": "bct",
        "reference_kl": "kl",
        "activation_distance": "act",
    }.items():
        assert_close(watched[name].sums, named[method].sums.detach() * pairs)
        assert_close(watched[name].counts, named[method].counts * pairs)
        assert not watched[name].sums.requires_grad
    by_layer = [watched[f"activation_distance/layer_{layer}"].sums for layer in (1, 2)]
    assert_close(torch.stack(by_layer).mean(0), watched["activation_distance"].sums)


def test_metrics_keep_no_second_copy_of_the_states_of_act(tmp_path, monkeypatch):
    model = add_lora(make("llama"))
    kept = []

    def capture(model, ids, mask, rows, positions, *args, **options):
        kept.append(len(positions))
        return capture_states(model, ids, mask, rows, positions, *args, **options)

    monkeypatch.setattr(paired, "capture_states", capture)
    for options in ({}, {"log_consistency_metrics": True}):
        args = config(tmp_path, ["act", "bct"], **options)
        paired_loss = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=True))
        losses, watched = paired_loss(model, make_batch(make_rows()[1:], args))
    assert kept[:2] == kept[2:]
    assert_close(watched["activation_distance"].sums, losses["act"].sums.detach())
    assert not watched["activation_distance"].sums.requires_grad


def test_equal_clean_prompts_share_one_reference_row(tmp_path):
    model = add_lora(make("llama"))
    args = config(tmp_path, ["act"])
    paired_loss = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=True))
    sizes = []
    handle = (
        model.get_base_model()
        .get_decoder()
        .embed_tokens.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    )
    paired_loss(model, make_batch(make_rows()[1:4], args))
    handle.remove()
    assert sizes == [2, 3]


# What no objective reaches


@pytest.mark.parametrize(
    ("method", "layers", "tied", "unreached"),
    [
        # 4 blocks: those after the last compared one, the final norm and the head (if it is not the embedding)
        (["act"], None, True, "norm"),
        (["act"], None, False, "norm head"),
        (["act"], [0, 1], True, "blocks norm"),
        (["mlpct"], [1], True, "blocks norm down"),
        (["kl"], None, True, ""),
        (["act", "bct"], [0], True, ""),
    ],
)
def test_unreached_parameters_are_frozen(tmp_path, method, layers, tied, unreached):
    model = make("qwen3")
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    args = config(tmp_path, method, layers=layers)
    paired_loss = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=False))
    paired_loss.freeze_unused(model)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    expected = set()
    last = (layers or [3])[-1]
    for name, _ in model.named_parameters():
        is_after = ".layers." in name and int(name.split(".layers.")[1].split(".")[0]) > last
        if (
            ("blocks" in unreached and is_after)
            or ("norm" in unreached and name == "model.norm.weight")
            or ("head" in unreached and name == "lm_head.weight")
            or ("down" in unreached and name == f"model.layers.{last}.mlp.down_proj.weight")
        ):
            expected.add(name)
    assert frozen == expected
    losses, _ = paired_loss(model, make_batch(make_rows(), args))
    sum(of_rows.sums.sum() for of_rows in losses.values()).backward()
    without_gradient = {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}
    assert not without_gradient


# Real prompts under real chat templates


@pytest.fixture(scope="module")
def small_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=4096,
    )  # fmt: skip
    model = add_lora(LlamaForCausalLM(config))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model


def check_real_batch(real, model, tmp_path, data):
    """Four pairs of uneven lengths in a batch: ACT and MLPCT equal the definitions, pair by pair."""
    tokenizer = real.tokenizers[
        data.draw(st.sampled_from(sorted(key for key in real.tokenizers if key[0] != "gemma")))
    ]
    rows = []
    for _ in range(4):
        row = real.rows[data.draw(st.integers(0, len(real.rows) - 1))]
        perturbed_prompt, shared_text = data.draw(mutations(row))
        clean_ids = render_prompt(tokenizer, row["clean_prompt"])
        perturbed_ids = render_prompt(tokenizer, perturbed_prompt)
        content = content_range(tokenizer, row["clean_prompt"], clean_ids, shared_text)
        span = shared_content_span(clean_ids, perturbed_ids, content)
        rows.append(
            {"clean_ids": clean_ids, "perturbed_ids": perturbed_ids, "completion_ids": [], "content_span": span}
        )
    args = config(tmp_path, ["act", "mlpct"])
    losses, _ = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=True))(
        model, make_batch(rows, args)
    )
    for number, row in enumerate(rows):
        with torch.no_grad():
            student = watch(model, row["perturbed_ids"], with_grad=False, attention=False)
            with model.disable_adapter():
                reference = watch(model, row["clean_ids"], with_grad=False, attention=False)
        for method, of_rows in losses.items():
            total, count = naive_pair(method, student, reference, row, [0, 1])
            assert of_rows.counts[number] == count
            assert_close(of_rows.sums[number], total, rtol=1e-5, atol=1e-6 * max(count, 1))


QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@pytest.mark.long
@given(data=st.data())
@QUICK
def test_real_prompts(real, small_model, tmp_path_factory, data):
    check_real_batch(real, small_model, tmp_path_factory.getbasetemp(), data)


@pytest.mark.slow
@given(data=st.data())
@settings(QUICK, max_examples=2_500)
def test_ten_thousand_real_pairs(real, small_model, tmp_path_factory, data):
    check_real_batch(real, small_model, tmp_path_factory.getbasetemp(), data)


def test_the_reference_keeps_its_own_head_in_full_fine_tuning(tmp_path):
    """Its weights stand in the student's place for the time of its pass; the head is read after it."""
    trainer = ConsistencyTrainer(
        model=make_model(),
        args=make_config(tmp_path, method="kl", max_steps=3, learning_rate=5e-2),
        train_dataset=make_pairs(4),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    # Not copies of the trainer's model, whose forward TRL has bound to the model itself
    initial, student = make_model().eval(), make_model().eval()
    student.load_state_dict(trainer.model.state_dict())
    total, tokens = 0.0, 0
    for row in trainer.train_dataset:
        log_p, log_q = (
            model(torch.tensor([row[ids] + row["completion_ids"]])).logits[0, len(row[ids]) - 1 : -1].log_softmax(-1)
            for model, ids in ((student, "perturbed_ids"), (initial, "clean_ids"))
        )
        total += (log_q.exp() * (log_q - log_p)).sum().item()
        tokens += len(row["completion_ids"])
    assert total / tokens > 1e-3
    assert trainer.evaluate(make_pairs(4))["eval_loss"] == pytest.approx(total / tokens, rel=1e-4)


@pytest.mark.parametrize("with_metrics", [False, True])
def test_both_divergences_of_a_frozen_head_agree(tmp_path, monkeypatch, with_metrics):
    calls = []

    def counted(*args):
        calls.append(args)
        return shared_head_divergence(*args)

    monkeypatch.setattr(paired, "shared_head_divergence", counted)
    args = config(tmp_path, ["kl"], log_consistency_metrics=with_metrics)
    model = add_lora(make("llama"))
    batch = make_batch(make_rows(), args)
    runs = []
    for _ in range(2):
        losses, watched = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=True))(model, batch)
        values = [of["kl"].sums for of in (losses, watched) if "kl" in of]
        values += [of.sums for name, of in watched.items() if name == "reference_kl"]
        grads = torch.autograd.grad(losses["kl"].sums.sum(), [p for p in model.parameters() if p.requires_grad])
        runs.append([*values, *grads])
        monkeypatch.setattr(paired, "_is_frozen_and_shared", lambda ours, theirs: False)
    assert len(calls) == 1 + with_metrics
    assert runs[0][0].abs().sum() > 1e-3
    for ours, theirs in zip(*runs, strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
