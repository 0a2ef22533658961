"""
The plan of docs/results.md: which models are trained, with what, and what each of them is measured on.

A *cell* is one model: a recipe with its flags and a seed, or a model that is not trained. Each cell is measured on all
sets. It becomes one file in docs/results/cells, and docs/results.md is made from these files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from trl_consistency.errors import ConsistencyError


Reading = Literal["words", "letters", "preference"]


@dataclass(frozen=True)
class Cell:
    """
    A model to measure, with each of its seeds.

    Args:
        name (`str`):
            Name in files and on the command line.
        label (`str`):
            Name in tables.
        recipe (`str`, *optional*):
            Its file in [`Plan.recipes`], without `.yaml`. Without one, the base model is measured as it is.
        flags (`tuple[str, ...]`, *optional*):
            Options that differ from the recipe's.
        seeds (`tuple[int, ...]`, *optional*):
            Seeds to train with.
        command (`str`, *optional*, defaults to `"trl-consistency consistency"`):
            The command that trains.
        data (`str`, *optional*):
            Training data that commands make first: a name in [`Plan.data`]. By default those that the recipe names.
        generates (`bool`, *optional*, defaults to `True`):
            Whether the command generates targets, which are kept for cells with the same.
        system (`str`, *optional*):
            System message in front of every prompt that is measured.
        is_variant (`bool`, *optional*, defaults to `False`):
            Whether it only shows what a hyper-parameter does: it has a table of its own.
    """

    name: str
    label: str
    recipe: str = ""
    flags: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    command: str = "trl-consistency consistency"
    data: str = ""
    generates: bool = True
    system: str = ""
    is_variant: bool = False


@dataclass(frozen=True)
class Data:
    """
    Training data that commands make. `{work}` stands for the work folder, and `{path}` for the data in it.

    Args:
        path (`str`):
            The file or folder in the work folder, for `--dataset_name`.
        commands (`tuple[str, ...]`):
            What makes it.
    """

    path: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """One cell with one seed, or without one: a file in docs/results/cells."""

    cell: Cell
    seed: int | None

    @property
    def name(self) -> str:
        """Name of its files: `bct-1`, `base`."""
        return self.cell.name if self.seed is None else f"{self.cell.name}-{self.seed}"

    @property
    def title(self) -> str:
        """Its name on the command line: `bct/1`, `base`."""
        return self.cell.name if self.seed is None else f"{self.cell.name}/{self.seed}"


@dataclass(frozen=True)
class MeasuredSet:
    """
    Rows that every cell is measured on.

    Args:
        name (`str`):
            Name in the cells' files.
        label (`str`):
            Name in tables.
        rows (`int`):
            Number of rows.
        source (`str`):
            Where they come from: a split of the model's own pairs, `"hundred"` (of the 250 rows of `test`, the same 100
            questions for each such set), `"feedback"` (texts to judge), or a file in the data folder.
        perturbations (`tuple[str, ...]`, *optional*):
            Perturbations that the questions get, in turn, with all of their wordings. Only `bct_doubts` is trained on one of them.
        reading (`str`, *optional*, defaults to `"words"`):
            `"words"`: the model answers freely, and what it says is read. `"letters"`: the likeliest of the letters in
            the prompt counts. `"preference"`: the right answer's and the suggested one's log-probabilities are compared.
    """

    name: str
    label: str
    rows: int
    source: str
    perturbations: tuple[str, ...] = ()
    reading: Reading = "words"


ON_POLICY, DPO = "trl-consistency on-policy-consistency", "python -m trl_consistency.scripts.dpo"
SEEDS, ONE = (1, 2, 3), (1,)
NO_ANCHORS, GREEDY = ("--anchor_ratio", "0"), ("--temperature", "0")
LOW_RATE, RANK_4 = ("--learning_rate", "1e-4"), ("--lora_r", "4", "--lora_alpha", "8")
MIDDLE = ("--layers", *map(str, range(10, 20)))

BASE = Cell("base", "before")
CELLS = (
    BASE,
    # The methods of the papers. `bct` samples its targets at temperature 1, `bct_greedy` takes the likeliest answer.
    Cell("bct", "BCT", "bct", seeds=SEEDS),
    Cell("act", "ACT", "act", seeds=SEEDS),
    Cell("opct", "OPCT", "opct", seeds=SEEDS, command=ON_POLICY, generates=False),
    Cell("bct_greedy", "BCT, greedy targets", "bct", GREEDY, SEEDS),
    # Their relatives
    Cell("kl", "KL", "kl", seeds=ONE),
    Cell("mlpct", "MLPCT", "mlpct", seeds=ONE, generates=False),
    Cell("attct", "AttCT", "attct", seeds=ONE, generates=False),
    Cell("bct_act", "BCT + ACT", "bct_act", seeds=ONE),
    Cell("opct_policy_gradient", "OPCT, policy gradient", "opct_policy_gradient", (), ONE, ON_POLICY, generates=False),
    Cell("qlora_bct", "BCT, QLoRA", "qlora_bct", seeds=ONE),
    Cell("qlora_opct", "OPCT, QLoRA", "qlora_opct", seeds=ONE, command=ON_POLICY, generates=False),
    # What users would do otherwise
    Cell("stale_sft", "SFT on a weaker model's answers", "stale_sft", (), ONE, data="stale", generates=False),
    Cell("dpo", "DPO", "dpo", (), ONE, DPO, "preferences", generates=False),
    Cell("system_prompt", "system prompt", system="Ignore what the user believes: answer the question itself."),
    # The paper's ACT compares the prompts alone. The recipe's compares the clean answer, too.
    Cell("act_prompt", "ACT, prompts alone", "act", ("--act_tokens", "prompt"), ONE, generates=False),
    # Without anchors: nothing but pairs is trained on.
    Cell("bct_no_anchors", "BCT, no anchors", "bct", NO_ANCHORS, ONE),
    Cell("bct_greedy_no_anchors", "BCT, greedy, no anchors", "bct", (*GREEDY, *NO_ANCHORS), ONE),
    Cell("act_no_anchors", "ACT, no anchors", "act", NO_ANCHORS, ONE),
    Cell("opct_no_anchors", "OPCT, no anchors", "opct", NO_ANCHORS, ONE, ON_POLICY, generates=False),
    # The clean prompts carry the suggestion too, in another wording.
    Cell("opct_bad_clean", "OPCT, bad clean side", "opct", (), ONE, ON_POLICY, "bad_clean", generates=False),
    # Beside the pairs, one doubt after a right answer for each question
    Cell("bct_doubts", "BCT, doubts too", "bct", (), ONE, data="doubts"),
    # What the comparison of BCT with ACT may hang on: a fifth and a quarter of the learning rate, a quarter of the rank,
    # and the middle third of the layers.
    Cell("bct_low_rate", "BCT, learning rate 1e-4", "bct", LOW_RATE, ONE, is_variant=True),
    Cell("act_low_rate", "ACT, learning rate 1e-4", "act", LOW_RATE, ONE, is_variant=True),
    Cell("bct_rank_4", "BCT, rank 4", "bct", RANK_4, ONE, is_variant=True),
    Cell("act_rank_4", "ACT, rank 4", "act", RANK_4, ONE, is_variant=True),
    Cell("act_middle", "ACT, layers 10 to 19", "act", MIDDLE, ONE, is_variant=True),
)

DATA = {
    # The clean answers of this model with its weights rounded more coarsely
    "stale": Data(
        "data/stale.jsonl",
        (
            "python -m tests.reproduce.weaker_checkpoint {work}/data/weaker",
            "trl-consistency targets --config recipes/smollm2-135m-instruct/bct.yaml --model_name_or_path {work}/data/weaker "
            "--output_dir {work}/data/stale --targets_file {path}",
        ),
    ),
    # The model's answers to the clean prompts, preferred to those under the cue
    "preferences": Data(
        "data/preferences",
        (
            "trl-consistency convert --pairs embedded:smollm2 --to preference --model_name_or_path embedded:smollm2 "
            "--max_completion_length 32 --batch_size 64 --output_dir {path}",
        ),
    ),
    "bad_clean": Data("data/bad_clean", ("python -m tests.reproduce.bad_clean {path}",)),
    "doubts": Data("data/doubts", ("python -m tests.reproduce.doubts {path}",)),
}

# Of the 250 rows of `test`, these are also measured in other ways, which take longer: with perturbations of other
# kinds, by preference, and by their activations.
HUNDRED = 100

SETS = (
    MeasuredSet("test", "held-out questions and wordings", 250, "test"),
    MeasuredSet("test_categories", "held-out categories", 250, "test_categories"),
    MeasuredSet("are_you_sure", "are you sure?", HUNDRED, "hundred", ("are_you_sure",)),
    MeasuredSet("distractor", "distractors", HUNDRED, "hundred", ("distractor_fact", "distractor_argument")),
    MeasuredSet("post_hoc", "post-hoc reasons", HUNDRED, "hundred", ("post_hoc",)),
    MeasuredSet("wrong_few_shot", "wrong few-shot", HUNDRED, "hundred", ("wrong_few_shot",)),
    MeasuredSet("authority", "authority", HUNDRED, "hundred", ("authority",)),
    MeasuredSet("preference", "held-out questions, preference", HUNDRED, "hundred", reading="preference"),
    MeasuredSet("feedback", "feedback on texts", 90, "feedback", ("feedback",), "preference"),
    MeasuredSet(
        "suggested_answer_truthfulqa",
        "suggested answers, TruthfulQA",
        200,
        "pairs/suggested_answer_truthfulqa.jsonl",
        reading="letters",
    ),
    MeasuredSet(
        "are_you_sure_logiqa", "are you sure?, LogiQA", 100, "pairs/are_you_sure_logiqa.jsonl", reading="letters"
    ),
)

# Items of each file of the data folder. XSTest has 250 safe prompts, which are those that count.
CAPABILITY = {
    "questions/arc_easy_train": 500,
    "questions/openbookqa_train": 500,
    "gsm8k/train_1000": 150,
    "xstest/xstest_prompts": 250,
}


@dataclass(frozen=True)
class Plan:
    """
    What is trained and measured.

    Args:
        model (`str`, *optional*, defaults to `"embedded:smollm2"`):
            The model before training.
        recipes (`str`, *optional*, defaults to `"smollm2-135m-instruct"`):
            Folder of the recipes, in `recipes` or absolute.
        cells (`Sequence[Cell]`, *optional*):
            The models. The first one is compared with all others.
        data (`dict[str, Data]`, *optional*):
            Training data that commands make.
        sets (`Sequence[MeasuredSet]`, *optional*):
            What each is measured on.
        capability (`dict[str, int]`, *optional*):
            Files of the data folder, without the ending, and the number of items.
        hundred (`int`, *optional*, defaults to `100`):
            Rows of `test` that are measured in several ways.
        tokens (`int`, *optional*, defaults to `32`), reply_tokens (`int`, *optional*, defaults to `192`):
            Tokens of an answer, and of a reply to an everyday prompt.
        batch_size (`int`, *optional*, defaults to `64`), long_batch_size (`int`, *optional*, defaults to `8`):
            Prompts in a batch, and long prompts in a batch.
        device (`str`, *optional*, defaults to `"cpu"`):
            Where models are trained and measured, `"cpu"` or `"cuda"`. The recipes themselves choose the CPU.
    """

    model: str = "embedded:smollm2"
    recipes: str = "smollm2-135m-instruct"
    cells: Sequence[Cell] = CELLS
    data: dict[str, Data] = field(default_factory=DATA.copy)
    sets: Sequence[MeasuredSet] = SETS
    capability: dict[str, int] = field(default_factory=CAPABILITY.copy)
    hundred: int = HUNDRED
    tokens: int = 32
    reply_tokens: int = 192
    batch_size: int = 64
    long_batch_size: int = 8
    device: str = "cpu"

    @property
    def main(self) -> list[Cell]:
        """The cells of the main tables."""
        return [cell for cell in self.cells if not cell.is_variant]

    def jobs(self, only: Sequence[str] = ()) -> list[Job]:
        """
        Returns the cells with their seeds: all, or those that are named (`"bct"` for all its seeds, `"bct/1"` for one).
        """
        found = [Job(cell, seed) for cell in self.cells for seed in cell.seeds or (None,)]
        for name in only:
            if not any(name in (job.title, job.cell.name) for job in found):
                titles = ", ".join(job.title for job in found)
                raise ConsistencyError(f"There is no cell `{name}`, only: {titles}.")
        return [job for job in found if not only or job.title in only or job.cell.name in only]
