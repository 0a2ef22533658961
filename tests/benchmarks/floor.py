"""The floor of a step: the operations that it cannot do without, over the rate at which this machine multiplies."""

import time
from collections import Counter
from statistics import median

import torch
from torch import nn

from trl_consistency.costs.operations import Segment, Shapes, count_step
from trl_consistency.costs.setup import Setup


def operations(model: nn.Module, setup: Setup) -> int:
    """Returns the operations of a micro-batch."""
    return count_step(model, setup).step


def matrix_products(model: nn.Module, setup: Setup) -> list[list[int]]:
    """Returns the products of a forward pass as (tokens, inputs, outputs, how many)."""
    shapes = Shapes.of(model)
    tokens = setup.per_device_train_batch_size * setup.max_length
    if setup.is_opct:
        tokens = setup.num_prompts * setup.prompt + setup.per_device_train_batch_size * setup.answer
    products = Counter((tokens, layer.inputs, layer.outputs) for block in shapes.blocks for layer in block)
    if setup.answer:
        vocabulary, width = model.get_output_embeddings().weight.shape  # type: ignore[operator]
        products[min(setup.per_device_train_batch_size * setup.answer, 4096), width, vocabulary] += 1
    return [[*shape, count] for shape, count in products.items()]


def rate(products: list[list[int]], turns: int) -> float:
    """Measures floating-point operations in a second of CPU time over all products, as the median of some turns."""
    made = [(torch.randn(n, k), torch.randn(m, k), count) for n, k, m, count in products]
    needed = sum(2 * n * k * m * count for n, k, m, count in products)
    rates = []
    for _ in range(turns + 1):
        seconds = 0.0
        for left, right, count in made:
            start = time.process_time()
            torch.mm(left, right.t())
            seconds += count * (time.process_time() - start)
        rates.append(needed / seconds)
    return median(rates[1:])  # the first turn warms up


def reference(model: nn.Module, setup: Setup) -> int:
    """Returns the operations of the reference's pass."""
    return count_step(model, setup).reference


def unread_start(model: nn.Module, setup: Setup, tokens: int) -> int:
    """
    Returns what `count_step` counts at the first `tokens` of prompts, where the two sides share nothing: the last block's
    output, of which nothing reads but the keys and values.
    """
    shapes, rows = Shapes.of(model), setup.per_device_train_batch_size
    depth = len(shapes.blocks)

    def operations(segment: Segment) -> int:
        forward = sum(shapes.forward([segment], depth, with_adapter) for with_adapter in (False, True))
        return forward + shapes.backward([segment], depth)

    return operations(Segment(rows, 0, tokens)) - operations(Segment(rows, 0, tokens, only_cached=True))
