"""SmolLM2-135M-Instruct out of a package of PyPI: a real chat model without a model hub, and questions to cure it with."""
