import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.helpers.models import make_model, make_pairs
from trl_consistency import ConsistencyError
from trl_consistency.data.rendering import render_prompt
from trl_consistency.evaluation import PairSet, measure_distances


ANSWERS = [[5, 9, 2], [7], [11, 12, 13, 14, 2], [30, 2], [8, 8]]


@pytest.fixture
def rows(tokenizer):
    """Cues before the question, and one after it, where only the header is shared."""
    rows = PairSet.of(make_pairs(4, completion=False)).rendered(tokenizer).rows
    question = rows[0]["clean_prompt"][0]["content"]
    after = [{"role": "user", "content": f"{question} I say Lyon."}]
    return [*rows, rows[0] | {"perturbed_ids": render_prompt(tokenizer, after)}]


def trained(seed=3):
    """The same base as `make_model()`, with an adapter that does something."""
    model = get_peft_model(make_model(), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@torch.no_grad()
def naive(model, reference, row, answer, layers):
    """From the outputs of whole blocks and from full logits, in float64."""

    def block_outputs(of, ids):
        base = of.get_base_model() if hasattr(of, "get_base_model") else of
        found, hooks = [], []
        for block in base.model.layers:
            hooks.append(block.register_forward_hook(lambda module, args, output: found.append(output)))
        logits = of(input_ids=torch.tensor([ids])).logits[0]
        for hook in hooks:
            hook.remove()
        return [(state[0] if isinstance(state, tuple) else state)[0].double() for state in found], logits.double()

    clean, perturbed = list(row["clean_ids"]), list(row["perturbed_ids"])
    shared = 0
    while shared < min(len(clean), len(perturbed)) and clean[-1 - shared] == perturbed[-1 - shared]:
        shared += 1
    theirs, _ = block_outputs(reference, clean)
    ours, logits = block_outputs(model, [*perturbed, *answer])
    total = 0.0
    for layer in layers:
        for place in range(1, shared + 1):
            total += ((ours[layer][len(perturbed) - place] - theirs[layer][-place]) ** 2).sum().item()
    nats = 0.0
    for number, token in enumerate(answer):
        nats -= logits[len(perturbed) - 1 + number].log_softmax(-1)[token].item()
    return total / (len(layers) * shared), shared, nats / len(answer), len(answer)


@pytest.mark.parametrize("layers", [None, [1], [-2]])
def test_distances_equal_a_naive_computation(rows, layers):
    model, reference = trained().train(), make_model().train()
    found = measure_distances(model, reference, rows, ANSWERS, layers)
    assert model.training
    assert reference.training
    model.eval(), reference.eval()
    for distance, row, answer in zip(found, rows, ANSWERS, strict=True):
        expected = naive(model, reference, row, answer, [0, 1] if layers is None else [layers[0] % 2])
        assert distance == pytest.approx(expected, rel=1e-4)
    assert found[4].shared_tokens < found[0].shared_tokens
    of_base = measure_distances(reference, reference, rows, ANSWERS, layers)
    assert all(abs(one.activation - base.activation) > 0.01 for one, base in zip(found, of_base, strict=True))


def test_the_reference_on_equal_prompts_is_at_distance_zero(rows):
    same = rows[0] | {"perturbed_ids": rows[0]["clean_ids"]}
    (distance,) = measure_distances(make_model(), make_model(), [same])
    assert distance == (0.0, len(same["clean_ids"]), None, 0)


def test_pairs_that_share_nothing_have_no_distance(rows):
    apart = rows[0] | {"perturbed_ids": [*rows[0]["perturbed_ids"], 7]}
    (distance,) = measure_distances(trained(), make_model(), [apart], [[5, 2]])
    assert distance.activation is None
    assert distance.shared_tokens == 0
    assert distance.answer_nats > 0


def test_the_base_that_holds_the_adapter_is_no_reference(rows):
    model = trained()
    with pytest.raises(ConsistencyError, match="`reference` is the model into which PEFT has put the adapter"):
        measure_distances(model, model.get_base_model(), rows[:1])


def test_an_adapter_that_only_whole_prompts_switch_on_is_refused(rows):
    """The figures were those of the base model."""
    adapter = LoraConfig(target_modules=["q_proj"], alora_invocation_tokens=[5], task_type="CAUSAL_LM")
    with pytest.raises(ConsistencyError, match="The adapter of the model sets `alora_invocation_tokens`"):
        measure_distances(get_peft_model(make_model(), adapter), make_model(), rows[:1])
