"""Divergence of next-token distributions and log-probabilities of tokens, computed in chunks."""

import math
from typing import Any

import torch
from torch import Tensor

# TRL's kernels are pure functions of tensors too, independent of its trainers.
from trl.kernels import ChunkedLogProbFunction
from trl.kernels.chunked_divergence import VOCAB_CHUNK_SIZE, ChunkedDivergenceFunction

from .dtypes import at_least_float32


# Logits of a side per chunk (about four such tensors are alive at once; larger chunks are not faster), and the fewest
# tokens per chunk (smaller matrix products are slow).
SHARED_HEAD_LOGITS, SHARED_HEAD_TOKENS = 1 << 22, 64


def generalized_divergence(
    student_hidden: Tensor,
    student_weight: Tensor,
    student_bias: Tensor | None,
    reference_hidden: Tensor,
    reference_weight: Tensor,
    reference_bias: Tensor | None,
    beta: float,
    temperature: float = 1.0,
    student_scale: float = 1.0,
    student_softcap: float | None = None,
    reference_scale: float = 1.0,
    reference_softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """
    The generalized Jensen-Shannon divergence of each position, over the whole vocabulary, and the student's entropy.

    For `beta` between 0 and 1, it is `beta KL(π_0 ‖ m) + (1 - beta) KL(π_θ ‖ m)` with `m = (1 - beta) π_θ + beta π_0`.
    At 0, it is the forward KL, `KL(π_0 ‖ π_θ)`, and at 1 the reverse KL, `KL(π_θ ‖ π_0)`. Only the student gets a gradient.

    The forward KL is BCT with soft targets: Chua et al. (arXiv 2403.05518) train on tokens sampled from the reference,
    and this on its whole distribution. Han et al. (arXiv 2605.21834) train on the reverse KL, which they estimate from
    the sampled token.

    Source of the divergence: Agarwal et al., "On-Policy Distillation of Language Models", arXiv 2306.13649.

    Args:
        student_hidden (`torch.Tensor` of shape `(N, H)`):
            Final hidden states of the student, on the positions that predict a compared token.
        student_weight (`torch.Tensor` of shape `(V, H)`):
            Weight of the student's head.
        student_bias (`torch.Tensor` of shape `(V,)`, *optional*):
            Its bias.
        reference_hidden (`torch.Tensor` of shape `(N, H_0)`):
            Final hidden states of the reference, for the same tokens.
        reference_weight (`torch.Tensor` of shape `(V, H_0)`):
            Weight of the reference's head, which may be the student's.
        reference_bias (`torch.Tensor` of shape `(V,)`, *optional*):
            Its bias.
        beta (`float`):
            Interpolation between the forward KL (0) and the reverse KL (1).
        temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of both softmaxes.
        student_scale (`float`, *optional*, defaults to `1.0`), reference_scale (`float`, *optional*, defaults to `1.0`):
            Factor of each side's logits.
        student_softcap (`float`, *optional*), reference_softcap (`float`, *optional*):
            Soft cap of each side's scaled logits, `softcap · tanh(logits / softcap)`.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Divergence and entropy, both of shape `(N,)`, in float32, in nats.
        Half-precision inputs are multiplied in their own dtype and summed in float32.
    """
    return ChunkedDivergenceFunction.apply(
        student_hidden,
        student_weight,
        student_bias,
        # Not detached: the kernel computes no gradient for the reference, and ZeRO-3 cannot gather detached weights.
        reference_hidden,
        reference_weight,
        reference_bias,
        beta,
        temperature,
        student_scale,
        student_softcap,
        reference_scale,
        reference_softcap,
    )


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """
    `log π(y)` of each position.

    The head must be whole: unlike [`generalized_divergence`], this does not gather the shards of ZeRO-3.

    Args:
        hidden (`torch.Tensor` of shape `(N, H)`):
            Final hidden states, on the positions that predict `labels`.
        weight (`torch.Tensor` of shape `(V, H)`):
            Weight of the head.
        bias (`torch.Tensor` of shape `(V,)`, *optional*):
            Its bias.
        labels (`torch.LongTensor` of shape `(N,)`):
            Token ids, `y`, all of them valid.
        logit_scale (`float`, *optional*, defaults to `1.0`):
            Factor of the logits.
        softcap (`float`, *optional*):
            Soft cap of the scaled logits, `softcap · tanh(logits / softcap)`.
        temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of the softmax.

    Returns:
        `torch.Tensor` of shape `(N,)`: In float32, in nats.
    """
    log_probs, _ = _token_log_probs(hidden, weight, bias, labels, logit_scale, softcap, temperature, ())
    return log_probs


def token_log_probs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Like [`token_log_probs`], and the entropy `-Σ_v π(v) log π(v)` of each position, without gradient."""
    log_probs, entropy = _token_log_probs(
        hidden, weight, bias, labels, logit_scale, softcap, temperature, ("entropy",)
    )
    return log_probs, entropy.detach()


def _token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    logit_scale: float,
    softcap: float | None,
    temperature: float,
    extra_outputs: tuple[str, ...],
) -> tuple[Tensor, Any]:
    # The kernel rounds logits to the dtype of the hidden states, or of autocast. In bfloat16 a logit of 20 is off by
    # up to 0.06, too much for differences of log-probabilities.
    with torch.autocast(hidden.device.type, enabled=False):
        log_probs, entropy, *_ = token_scores(
            hidden.float(),
            weight,
            bias,
            labels,
            temperature,
            min(VOCAB_CHUNK_SIZE, weight.shape[0]),
            softcap,
            logit_scale,
            extra_outputs,
        )
    return log_probs, entropy


def token_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    temperature: float = 1.0,
    chunk_size: int = VOCAB_CHUNK_SIZE,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    outputs: tuple[str, ...] = (),
) -> tuple[Tensor, Any, Any, Any, Any]:
    """
    As TRL's kernel, whose arguments and results these are: `log π(y)` of each position (`"log_probs"`) and, of `outputs`,
    `"entropy"`, `"log_sum_sq_probs"`, `"mean_logits"` and `"is_top1"`.

    With a frozen head on a CPU, the forward pass computes the gradient of the hidden states, too. This takes two
    products with the head. The kernel takes three, because its backward pass computes the logits anew. The entropy has
    no gradient there.
    """
    is_plain = bias is None and softcap is None and not weight.requires_grad and not hasattr(weight, "ds_id")
    in_one_dtype = hidden.dtype == weight.dtype and hidden.dtype in (torch.float32, torch.float64)
    on_cpu = hidden.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if is_plain and in_one_dtype and on_cpu and set(outputs) <= {"log_probs", "entropy", "is_top1"}:
        hidden = hidden if torch.is_grad_enabled() else hidden.detach()  # whose gradient is not needed
        log_probs, entropy, is_top1 = _FrozenHeadScores.apply(hidden, weight, labels, logit_scale / temperature)
        return log_probs, entropy, None, None, is_top1
    return ChunkedLogProbFunction.apply(
        hidden, weight, bias, labels, temperature, chunk_size, softcap, logit_scale, outputs
    )


class _FrozenHeadScores(torch.autograd.Function):
    """`log π(y)` of each position, its entropy, and whether `y` has the highest probability."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0]
        rows = hidden if scale == 1 else hidden * scale
        tokens = max(SHARED_HEAD_LOGITS // len(weight), SHARED_HEAD_TOKENS)
        buffers = weight.new_empty(2, min(tokens, len(rows)), len(weight))
        chunks = zip(rows.split(tokens), labels.split(tokens), strict=True)
        parts = [_chunk_of_scores(chunk, weight, of, needs_grad, buffers) for chunk, of in chunks]
        log_probs, entropy, is_top1, grad = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(grad.mul_(scale))
        ctx.mark_non_differentiable(entropy, is_top1)
        return log_probs, entropy, is_top1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = ctx.saved_tensors
        return grads[0][:, None] * grad, None, None, None


def _chunk_of_scores(
    hidden: Tensor, weight: Tensor, labels: Tensor, needs_grad: bool, buffers: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """
    Returns the three scores, (n,), and the gradient of `log π(y)`, (n, H), or (n, 0) if it is not needed. `buffers` are two
    tensors of at least n rows, (2, n, V), which are overwritten.
    """
    logits, log_probs = buffers[:, : len(hidden)]
    torch.mm(hidden, weight.t(), out=logits)
    is_top1 = logits.gather(-1, labels[:, None])[:, 0] == logits.amax(-1)  # `argmax` is ten times as slow
    torch.log_softmax(logits, -1, out=log_probs)
    probs = torch.exp(log_probs, out=logits)
    of_labels = log_probs.gather(-1, labels[:, None])[:, 0]
    grad = weight[labels] - probs @ weight if needs_grad else hidden[:, :0]
    return of_labels, -torch.linalg.vecdot(probs, log_probs), is_top1, grad


def shared_head_divergence(
    student_hidden: Tensor, reference_hidden: Tensor, weight: Tensor, beta: float = 1.0, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """
    Divergence between student and reference at each position when both use the same frozen head, and the student's
    entropy.

    `p` is the student's distribution, `q` the reference's, and `m = (1 - β) p + β q`. The divergence is TRL's, exact
    over the vocabulary: `KL(q ‖ p)` for `β = 0`, `KL(p ‖ q)` for `β = 1`, else `β KL(q ‖ m) + (1 - β) KL(p ‖ m)`.

    The head is frozen, so only the student's hidden states need a gradient, and the forward pass computes it. This
    takes two projections and one product; recomputing the logits would take four projections and one product.

    Args:
        student_hidden (`torch.Tensor` of shape `(N, H)`):
            Final hidden states of the student, on the positions that predict a compared token.
        reference_hidden (`torch.Tensor` of shape `(N, H)`):
            Final hidden states of the reference, for the same tokens.
        weight (`torch.Tensor` of shape `(V, H)`):
            Weight of the head, which must be frozen, whole and without bias. Half precision is copied to float32.
        beta (`float`, *optional*, defaults to `1.0`):
            Interpolation between the forward KL (0) and the reverse KL (1), `β`.
        temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of both softmaxes.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The divergence and the entropy, both of shape `(N,)`, in nats, in float32
        or float64. The entropy has no gradient.

    Raises:
        `ValueError`: If the weight requires a gradient.
    """
    if weight.requires_grad:
        raise ValueError("The shared head must be frozen: no gradient of its weight is formed.")
    return _SharedHeadDivergence.apply(student_hidden, reference_hidden, weight, beta, temperature)


class _SharedHeadDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, student_hidden: Tensor, reference_hidden: Tensor, weight: Tensor, beta: float, temperature: float
    ) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0]
        with torch.autocast(student_hidden.device.type, enabled=False):
            head = at_least_float32(weight)
            student, reference = (hidden.to(head.dtype) / temperature for hidden in (student_hidden, reference_hidden))
            tokens = max(SHARED_HEAD_LOGITS // len(head), SHARED_HEAD_TOKENS)
            # All chunks write to the same memory: the system maps and clears large tensors anew each time they are made.
            buffers = head.new_empty(2, 2 * min(tokens, len(student)), len(head))
            chunks = zip(student.split(tokens), reference.split(tokens), strict=True)
            parts = [_chunk_of_divergence(ours, theirs, head, beta, needs_grad, buffers) for ours, theirs in chunks]
        divergence, entropy, grad = (torch.cat(part) for part in zip(*parts, strict=True))
        # `student` is divided by the temperature: this is the gradient of `student_hidden` itself.
        ctx.save_for_backward(grad.div_(temperature).to(student_hidden.dtype))
        ctx.mark_non_differentiable(entropy)
        return divergence, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (grad,) = ctx.saved_tensors
        return (grads[0][:, None] * grad).to(grad.dtype), None, None, None, None


def _chunk_of_divergence(
    student: Tensor, reference: Tensor, head: Tensor, beta: float, needs_grad: bool, buffers: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Returns divergence and entropy (n,), and the student's gradient (n, H), or (n, 0) if it is not needed. `buffers` are
    two tensors of at least 2n rows, (2, 2n, V), which are overwritten.
    """
    # One product for both sides: a larger one is faster.
    logits, log_probs = buffers[:, : 2 * len(student)]
    torch.mm(torch.cat([student, reference]), head.t(), out=logits)
    torch.log_softmax(logits, -1, out=log_probs)
    log_p, log_q = log_probs.chunk(2)
    p, spare = logits.chunk(2)
    torch.exp(log_p, out=p)
    entropy = -torch.mul(p, log_p, out=spare).sum(-1)
    if beta == 0:
        q = torch.exp(log_q, out=spare)
        divergence = log_q.sub_(log_p).mul_(q).sum(-1)
        grad = p.sub_(q)
    elif beta == 1:
        gap = log_p.sub_(log_q)
        divergence = torch.mul(p, gap, out=spare).sum(-1)
        grad = p.mul_(gap.sub_(divergence[:, None]))
    else:
        log_m = torch.logaddexp(log_p + math.log(1 - beta), log_q + math.log(beta), out=spare)
        q = log_q.exp()
        gap = log_p.sub_(log_m)
        of_student = torch.linalg.vecdot(p, gap)
        divergence = beta * torch.linalg.vecdot(q, log_q.sub_(log_m)) + (1 - beta) * of_student
        grad = p.mul_(gap.sub_(of_student[:, None])).mul_(1 - beta)
    return divergence, entropy, grad @ head if needs_grad else grad[:, :0]
