import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode
from trl.kernels import chunked_divergence, chunked_logprob
from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

from trl_consistency.objectives import divergence
from trl_consistency.objectives.divergence import (
    generalized_divergence,
    shared_head_divergence,
    token_log_probs,
    token_log_probs_and_entropy,
    token_scores,
)


VOCABULARY = 37
HEADS = [(1.0, None, False), (0.5, None, True), (1.0, 5.0, False), (2.0, 8.0, True)]
# Of bfloat16, the gradient of the logits is rounded before it reaches the inputs.
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}


def make_side(rows, hidden, has_bias, dtype=torch.float32, seed=0):
    """Hidden states, and weight and bias of a head."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, hidden), (VOCABULARY, hidden), (VOCABULARY,)]
    side = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    return side if has_bias else [*side[:2], None]


def naive_log_softmax(hidden, weight, bias, logit_scale, softcap):
    logits = hidden.double() @ weight.double().t()
    if bias is not None:
        logits = logits + bias.double()
    logits = logits * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits.log_softmax(-1)


def kl_divergence(student, reference, logit_scale=1.0, softcap=None):
    options = {"student_scale": logit_scale, "student_softcap": softcap}
    options |= {"reference_scale": logit_scale, "reference_softcap": softcap}
    return generalized_divergence(*student, *reference, beta=0.0, **options)[0]


def naive_kl(student, reference, logit_scale, softcap):
    log_p, log_q = (naive_log_softmax(*side, logit_scale, softcap) for side in (student, reference))
    return F.kl_div(log_p, log_q.detach(), reduction="none", log_target=True).sum(-1)


@pytest.fixture(params=[False, True], ids=["one tile", "several tiles"], autouse=True)
def _small_tiles(request, monkeypatch):
    if request.param:
        for module in (chunked_divergence, chunked_logprob):
            monkeypatch.setattr(module, "TOKEN_CHUNK_SIZE", 3)
        for module in (chunked_divergence, divergence):
            monkeypatch.setattr(module, "VOCAB_CHUNK_SIZE", 16)


def assert_close_with_gradients(values, expected, inputs, dtype):
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.double(), expected, **TOLERANCE[torch.float32])
    upstream = torch.linspace(-1, 1, len(values))
    inputs = [tensor for tensor in inputs if tensor is not None]
    grads = torch.autograd.grad(values, inputs, upstream)
    expected_grads = torch.autograd.grad(expected, inputs, upstream.double())
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.dtype == dtype
        scale = expected_grad.abs().max().clamp(min=1)
        torch.testing.assert_close(grad / scale, expected_grad / scale, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("logit_scale", "softcap", "has_bias"), HEADS)
@pytest.mark.parametrize("rows", [1, 7])
def test_kl_equals_the_definition(rows, logit_scale, softcap, has_bias, dtype):
    student = make_side(rows, 5, has_bias, dtype)
    reference = make_side(rows, 6, has_bias, dtype, seed=1)
    values = kl_divergence(student, reference, logit_scale, softcap)
    expected = naive_kl(student, reference, logit_scale, softcap)
    assert (values > 0).all()
    assert_close_with_gradients(values, expected, student, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("logit_scale", "softcap", "has_bias"), HEADS)
@pytest.mark.parametrize("rows", [1, 7])
def test_log_probs_equal_the_definition(rows, logit_scale, softcap, has_bias, dtype):
    side = make_side(rows, 5, has_bias, dtype)
    labels = torch.arange(rows) * 5
    values = token_log_probs(*side, labels, logit_scale, softcap)
    expected = naive_log_softmax(*side, logit_scale, softcap).gather(-1, labels[:, None]).squeeze(-1)
    assert_close_with_gradients(values, expected, side, dtype)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(("logit_scale", "softcap", "has_bias"), HEADS)
def test_entropy_beside_the_log_probs(logit_scale, softcap, has_bias, temperature):
    side = make_side(7, 5, has_bias)
    labels = torch.arange(7)
    values, entropy = token_log_probs_and_entropy(*side, labels, logit_scale, softcap, temperature)
    assert torch.equal(values, token_log_probs(*side, labels, logit_scale, softcap, temperature))
    log_probs = (naive_log_softmax(*side, logit_scale, softcap) / temperature).log_softmax(-1)
    torch.testing.assert_close(entropy, -(log_probs.exp() * log_probs).sum(-1).float().detach(), rtol=1e-5, atol=1e-6)
    assert not entropy.requires_grad


def test_kl_is_the_forward_one_and_zero_for_equal_sides():
    student, reference = make_side(4, 5, True), make_side(4, 5, True, seed=1)
    torch.testing.assert_close(kl_divergence(student, student), torch.zeros(4), atol=1e-5, rtol=0)
    forward, reverse = kl_divergence(student, reference), kl_divergence(reference, student)
    assert not torch.allclose(forward, reverse, rtol=0.01)


def test_no_gradient_into_the_reference():
    student, reference = make_side(4, 5, True), make_side(4, 5, True, seed=1)
    kl_divergence(student, reference).sum().backward()
    assert all(tensor.grad is not None for tensor in student)
    assert all(tensor.grad is None for tensor in reference)


def test_shared_head_is_trained_by_the_student_alone():
    """Where both sides read one head, its gradient is that of the student's side."""
    student, reference = make_side(4, 5, True), make_side(4, 5, True, seed=1)
    shared = [reference[0], *student[1:]]
    grads = torch.autograd.grad(kl_divergence(student, shared).sum(), student)
    expected = torch.autograd.grad(naive_kl(student, [tensor.detach() for tensor in shared], 1.0, None).sum(), student)
    for grad, expected_grad in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, expected_grad, **TOLERANCE[torch.float32])


def test_log_probs_do_not_round_the_logits_under_autocast():
    side = make_side(4, 5, False)
    labels = torch.arange(4)
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = token_log_probs(*side, labels)
    assert torch.equal(under_autocast, token_log_probs(*side, labels))


@pytest.mark.parametrize(
    "values_of",
    [
        lambda side: kl_divergence(side, side),
        lambda side: token_log_probs(*side, torch.zeros(0, dtype=torch.long)),
        lambda side: shared_head_divergence(side[0], side[0].detach(), side[1].detach())[0],
    ],
)
def test_no_position_is_a_differentiable_zero(values_of):
    side = make_side(0, 5, True)
    loss = values_of(side).sum()
    loss.backward()
    assert loss.item() == 0
    assert side[0].grad.shape == (0, 5)
    assert all(tensor.grad is None or tensor.grad.count_nonzero() == 0 for tensor in side)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("rows", [1, 7, 130])
def test_shared_head_equals_trls(monkeypatch, rows, beta, temperature, dtype):
    monkeypatch.setattr(divergence, "SHARED_HEAD_LOGITS", 1)  # several chunks
    student, weight, _ = make_side(rows, 5, False, dtype)
    reference = make_side(rows, 5, False, dtype, seed=1)[0].detach()
    weight = weight.detach()
    values, entropy = shared_head_divergence(student, reference, weight, beta, temperature)
    expected, expected_entropy = ChunkedDivergenceFunction.apply(
        student, weight, None, reference, weight, None, beta, temperature
    )
    assert not entropy.requires_grad
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-4, atol=1e-5)
    assert_close_with_gradients(values, expected.double(), [student], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("temperature", "logit_scale"), [(1.0, 1.0), (2.0, 0.5)])
@pytest.mark.parametrize("rows", [0, 1, 7, 130])
def test_scores_of_a_frozen_head_equal_trls(monkeypatch, rows, temperature, logit_scale, dtype):
    hidden, weight, _ = make_side(rows, 8, False, dtype)
    labels = torch.arange(rows) * 5 % VOCABULARY
    with torch.no_grad():
        labels[::2] = (hidden @ weight.t()).argmax(-1)[::2]  # half of them are the likeliest
    options = {"temperature": temperature, "logit_scale": logit_scale, "outputs": ("log_probs", "entropy", "is_top1")}
    options["chunk_size"] = 16
    theirs = token_scores(hidden, weight, None, labels, **options)  # the head is trained
    monkeypatch.setattr(divergence.ChunkedLogProbFunction, "apply", None)
    ours = token_scores(hidden, weight.detach(), None, labels, **options)
    assert ours[2] is None
    assert ours[3] is None
    for place in (0, 1):
        torch.testing.assert_close(ours[place].double(), theirs[place].double(), **TOLERANCE[torch.float32])
    assert torch.equal(ours[4], theirs[4])
    assert ours[4].sum() >= (rows + 1) // 2
    assert not ours[1].requires_grad
    grad = torch.autograd.grad(ours[0].sin().sum(), hidden)[0]
    naive = naive_log_softmax(hidden, weight, None, logit_scale / temperature, None).gather(1, labels[:, None])
    expected = torch.autograd.grad(naive.sin().sum(), hidden)[0]
    # TRL's own kernel computes in float32, and is as far away with float64.
    within = TOLERANCE[dtype] if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(grad, expected, **within)
    with torch.no_grad():
        again = token_scores(hidden, weight.detach(), None, labels, **options)
    torch.testing.assert_close(again[0], ours[0].detach())


def test_scores_of_a_frozen_head_take_two_products():
    hidden, weight, _ = make_side(7, 8, False)
    with FlopCounterMode(display=False) as counter:
        token_scores(hidden, weight.detach(), None, torch.arange(7))[0].sum().backward()
    assert counter.get_total_flops() == 2 * 2 * hidden.numel() * VOCABULARY
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        token_scores(hidden, weight.detach(), None, torch.arange(7))
    assert counter.get_total_flops() == 2 * hidden.numel() * VOCABULARY


@pytest.mark.parametrize(
    "change",
    [
        {"bias": torch.zeros(VOCABULARY)},
        {"softcap": 5.0},
        {"outputs": ("mean_logits",)},
        {"weight": torch.ones(VOCABULARY, 8).bfloat16()},
        {"weight": torch.ones(VOCABULARY, 8, requires_grad=True)},
    ],
    ids=str,
)
def test_other_scores_are_trls(monkeypatch, change):
    monkeypatch.setattr(divergence.ChunkedLogProbFunction, "apply", lambda *args: "TRL's")
    side = {"hidden": torch.ones(2, 8), "weight": torch.ones(VOCABULARY, 8), "bias": None, **change}
    assert token_scores(labels=torch.zeros(2).long(), **side) == "TRL's"
    with torch.autocast("cpu", torch.bfloat16):
        assert token_scores(torch.ones(2, 8), torch.ones(VOCABULARY, 8), None, torch.zeros(2).long()) == "TRL's"


def test_shared_head_in_double():
    """Against autograd, closely."""
    student, weight, _ = (None if t is None else t.detach().double() for t in make_side(70, 5, False))
    reference = make_side(70, 5, False, seed=1)[0].detach().double()
    student.requires_grad_()
    values, _ = shared_head_divergence(student, reference, weight, 0.5, 2.0)
    log_p, log_q = ((hidden @ weight.t() / 2).log_softmax(-1) for hidden in (student, reference))
    log_m = ((log_p.exp() + log_q.exp()) / 2).log()
    expected = ((log_p.exp() * (log_p - log_m)).sum(-1) + (log_q.exp() * (log_q - log_m)).sum(-1)) / 2
    torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-12)
    upstream = torch.linspace(-1, 1, 70, dtype=torch.float64)
    grads = [torch.autograd.grad(value, student, upstream)[0] for value in (values, expected)]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-12)


def test_shared_head_under_autocast_and_without_gradients():
    student, weight, _ = make_side(4, 5, False)
    reference = make_side(4, 5, False, seed=1)[0].detach()
    weight.requires_grad_(False)
    expected, _ = shared_head_divergence(student, reference, weight)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        values, _ = shared_head_divergence(student, reference, weight)
    assert torch.equal(values, expected)


def test_shared_head_must_be_frozen():
    student, weight, _ = make_side(4, 5, False)
    with pytest.raises(ValueError, match="must be frozen"):
        shared_head_divergence(student, student.detach(), weight)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_generalized_divergence_equals_full_logits(beta, temperature):
    """Sides of different widths, scales and soft caps, as a reference of its own may have."""
    student, reference = make_side(20, 8, True), make_side(20, 12, False, seed=1)
    sides = ((student, 2.0, 8.0), (reference, 0.5, None))
    divergences, entropy = generalized_divergence(
        *student, *reference, beta=beta, temperature=temperature,
        student_scale=2.0, student_softcap=8.0, reference_scale=0.5,
    )  # fmt: skip
    log_p, log_q = (
        (naive_log_softmax(*side, scale, softcap) / temperature).log_softmax(-1) for side, scale, softcap in sides
    )
    log_q = log_q.detach()
    mixture = ((1 - beta) * log_p.exp() + beta * log_q.exp()).log()

    def kl(log_a, log_b):
        return (log_a.exp() * (log_a - log_b)).sum(-1)

    naive = beta * kl(log_q, mixture) + (1 - beta) * kl(log_p, mixture)
    if beta in (0, 1):
        naive = kl(log_p, log_q) if beta else kl(log_q, log_p)
    assert torch.allclose(divergences.double(), naive, rtol=1e-4, atol=1e-5)
    assert torch.allclose(entropy.double(), -(log_p.exp() * log_p).sum(-1), rtol=1e-4, atol=1e-5)
    ours, theirs = (torch.autograd.grad(value.sum(), student) for value in (divergences, naive))
    for gradient, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5)
    assert reference[0].grad is None
