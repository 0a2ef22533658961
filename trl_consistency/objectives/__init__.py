"""
The mathematics of the objectives: pure functions of tensors, independent of models, tokenizers and trainers.

`N` is the number of positions, flattened over the pairs of a batch. Each function returns sums or one value per
position, and the caller divides by the count over the whole batch of all processes. All functions compute in float32
or float64. Only the student gets a gradient.
"""
