"""SmolLM2-135M-Instruct from a PyPI package: a real chat model without a model hub, and questions to train it on."""
