"""The sources of the methods, for the model card's text and citations."""

from typing import NamedTuple

from .words import in_words


_BIBTEX = """\
@article{{{key},
    title        = {{{{{title}}}}},
    author       = {{{authors}}},
    year         = {year},
    eprint       = {{arXiv:{arxiv_id}}}
}}"""


class Paper(NamedTuple):
    """A paper on arXiv."""

    key: str
    title: str
    authors: str
    year: int
    arxiv_id: str

    @property
    def link(self) -> str:
        return f"[{self.title}](https://huggingface.co/papers/{self.arxiv_id})"

    @property
    def bibtex(self) -> str:
        return _BIBTEX.format(**self._asdict())


class Origin(NamedTuple):
    """The printed name of a method, and its paper."""

    name: str
    paper: Paper


CHUA = Paper(
    "chua2024bias",
    "Bias-Augmented Consistency Training Reduces Biased Reasoning in Chain-of-Thought",
    "James Chua and Edward Rees and Hunar Batra and Samuel R. Bowman and Julian Michael and Ethan Perez and Miles Turpin",
    2024,
    "2403.05518",
)
IRPAN = Paper(
    "irpan2025consistency",
    "Consistency Training Helps Stop Sycophancy and Jailbreaks",
    "Alex Irpan and Alexander Matt Turner and Mark Kurzeja and David K. Elson and Rohin Shah",
    2025,
    "2510.27062",
)
HAN = Paper(
    "han2026onpolicy",
    "On-Policy Consistency Training Improves LLM Safety with Minimal Capability Degradation",
    "Andy Han and Avidan Shah and Chen Yueh-Han and others",
    2026,
    "2605.21834",
)
GAUTAM = Paper(
    "gautam2026stack",
    "Consistency Training Along the Transformer Stack",
    "Sukrati Gautam and Neil Shah and Arav Dhoot and Bryan Maruyama and Caroline Wei and Rohan Kapoor and Robert Sidey and "
    "Prakhar Gupta and Zi Cheng Huang and David Demitri Africa",
    2026,
    "2606.05817",
)

ORIGINS = {
    "bct": Origin("BCT", CHUA),
    "kl": Origin("soft-target BCT", CHUA),
    "act": Origin("ACT", IRPAN),
    "attct": Origin("AttCT", GAUTAM),
    "mlpct": Origin("MLPCT", GAUTAM),
    "opct": Origin("OPCT", HAN),
}


def name_methods(methods: list[str]) -> str:
    """Returns the methods' names in words, each with a link to its paper."""
    origins = [ORIGINS[method] for method in methods]
    return in_words([f"{origin.name} ({origin.paper.link})" for origin in origins])


def cite(methods: list[str]) -> str:
    """Returns the BibTeX entries of the methods' papers, each once."""
    return "\n\n".join(dict.fromkeys(ORIGINS[method].paper.bibtex for method in methods))
