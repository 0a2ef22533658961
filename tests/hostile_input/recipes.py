"""Hostile input: recipes."""

from tests.hostile_input.room import CHAT, Case
from trl_consistency.cli import main as cli


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


CASES: list[Case] = [
    Case(
        "unknown key",
        "A misspelt key",
        "unknown key in …recipe.yaml: `learning_rat`. Did you mean `learning_rate`?",
        lambda room: room.train("learning_rat: 1e-3\n"),
    ),
    Case(
        "key of another trainer",
        "A key of another command",
        "unknown key in …recipe.yaml: `num_generations`. It is an option of `trl-consistency on-policy-consistency`.",
        lambda room: room.train("num_generations: 4\n"),
    ),
    Case(
        "key given twice",
        "A key given twice",
        "…recipe.yaml is not valid YAML: the key `seed` is given twice in …line…",
        lambda room: room.train("seed: 3\nseed: 4\n"),
    ),
    Case(
        "two names of one option",
        "Two names of one option with different values",
        "`gradient_checkpointing` and `activation_checkpointing` are one option, and differ. Leave one of them out.",
        lambda room: room.train("gradient_checkpointing: false\nactivation_checkpointing: true\n"),
    ),
    Case(
        "a key given twice in JSON",
        "A key given twice in a mapping that is written as JSON",
        "…recipe.yaml: `chat_template_kwargs`: the key 'think' is given twice.",
        lambda room: room.train("""chat_template_kwargs: '{"think": true, "think": false}'\n"""),
    ),
    Case(
        "no number among template variables",
        "NaN among the template variables",
        "`chat_template_kwargs` sets `think` to nan, which is not a number.",
        lambda room: room.train("chat_template_kwargs: {think: .nan}\n"),
    ),
    Case(
        "a name with a zero byte",
        "A text with a zero byte, which no file can be called",
        "…recipe.yaml: `output_dir` holds a zero byte.",
        lambda room: room.train('output_dir: "a\\0b"\n', output_dir=""),
    ),
    *(
        Case(
            f"recipe with {path}",
            f"A variable of the environment in a path of a recipe, of which a folder would be made: `output_dir: {path}`",
            f"…recipe.yaml: `output_dir` is {path}, and recipes do not fill in {variable}: a folder of that name would be meant. "
            "Write the path, or give the option on the command line.",
            lambda room, path=path: room.train(output_dir=path),
        )
        for path, variable in {
            "$HOME/out": "$HOME",
            "${SCRATCH}": "${SCRATCH}",
            "runs/$USER/out": "$USER",
            "runs/bct-${ID}": "${ID}",
        }.items()
    ),
    Case(
        "empty text",
        "A recipe with an empty text for an option that can be left out",
        "…recipe.yaml: `anchor_dataset_name` is empty. Leave it out, or give a value; where that is a variable of the shell, set it.",
        lambda room: room.train('anchor_dataset_name: ""\n', anchor_ratio=0.5),
    ),
    Case(
        "octal number",
        "A number that YAML 1.1 reads otherwise than the command line: `max_steps: 010` (8)",
        "…recipe.yaml is not valid YAML: 010 would be read as 8: write that, or put quotes around it if it is text in …line…",
        lambda room: room.train("max_steps: 010\n", max_steps=""),
    ),
    Case(
        "number in sixties",
        "The same with colons: `logging_steps: 1:30` (90)",
        "…recipe.yaml is not valid YAML: 1:30 would be read as 90: write that, or put quotes around it if it is text in …line…",
        lambda room: room.train("logging_steps: 1:30\n"),
    ),
    Case(
        "tab",
        "A tab instead of spaces",
        "…recipe.yaml is not valid YAML: …found character '\\t' that cannot start any token in …line…",
        lambda room: room.train("generation_kwargs:\n\tmin_new_tokens: 2\n"),
    ),
    Case(
        "code in YAML",
        "YAML that would run Python",
        "…recipe.yaml is not valid YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:builtins.open' in …line…",
        lambda room: room.train(f"run_name: !!python/object/apply:builtins.open [{room.trap}, w]\n"),
    ),
    Case(
        "object in YAML",
        "YAML that would make a Python object",
        "…recipe.yaml is not valid YAML: could not determine a constructor for the tag…",
        lambda room: room.train("seed: !!python/object:trl.SFTConfig {}\n"),
    ),
    Case(
        "bomb",
        'Aliases of aliases that would fill the memory ("billion laughs")',
        "…recipe.yaml is not valid YAML: written out, its aliases would make more than 100000 values",
        lambda room: room.train(BOMB + "max_steps: *i\n"),
    ),
    Case(
        "endless YAML",
        "An alias that holds itself",
        "…recipe.yaml is not valid YAML: an alias holds itself…",
        lambda room: room.train("datasets: &a [*a]\n"),
    ),
    Case(
        "deep YAML",
        "YAML nested so deep that it would overflow the stack",
        "…recipe.yaml is not valid YAML: it is nested too deep.",
        lambda room: room.train("layers: " + "[" * 50_000),
    ),
    Case(
        "broken YAML",
        "A bracket that is not closed",
        "…recipe.yaml is not valid YAML: …",
        lambda room: room.train("layers: [1, 2\n"),
    ),
    Case(
        "not UTF-8 YAML",
        "A recipe in another encoding than UTF-8",
        "…recipe.yaml is not valid YAML: 'utf-8' codec can't decode byte…",
        lambda room: room.train("run_name: é\n".encode("latin-1")),
    ),
    Case(
        "empty recipe",
        "An empty recipe",
        "…empty.yaml must hold `key: value` lines.",
        lambda room: cli(["consistency", "--config", str(room.file("empty.yaml", ""))]),
    ),
    Case(
        "list as a recipe",
        "A list instead of keys",
        "…list.yaml must hold `key: value` lines.",
        lambda room: cli(["targets", "--config", str(room.file("list.yaml", "- method: bct"))]),
    ),
    Case(
        "two recipes in a file",
        "Two documents in one recipe",
        "…recipe.yaml is not valid YAML: expected a single document in the stream…",
        lambda room: room.train("---\nseed: 3\n"),
    ),
    Case(
        "no recipe",
        "A missing recipe",
        "cannot read `--config` gone.yaml: No such file or directory.",
        lambda room: cli(["on-policy-consistency", "--config", "gone.yaml"]),
    ),
    Case(
        "recipe without an end",
        "A recipe that is a device without an end, or a file of many gigabytes",
        "cannot read `--config` /dev/zero: it has more than 1,000,000 bytes.",
        lambda room: cli(["consistency", "--config", "/dev/zero"]),
    ),
    Case(
        "recipe not named",
        "`--config` without a recipe",
        "`--config` needs a file.",
        lambda room: cli(["lint", "--config"]),
    ),
    Case(
        "unquoted word",
        "A word that YAML reads as false",
        "…recipe.yaml: `eval_strategy` must be …, got False. YAML reads an unquoted yes/no/on/off as true/false: quote it if it is meant as a word.",
        lambda room: room.train("eval_strategy: no\n"),
    ),
    Case(
        "list for a value",
        "A list instead of a number",
        "…recipe.yaml: `seed` must be a whole number, got [1, 2].",
        lambda room: room.train("seed: [1, 2]\n"),
    ),
    Case(
        "mixture of text",
        "A mixture that is not a list of mappings",
        "…recipe.yaml: `datasets` must be a list of mappings, each with a `path`, got 'pairs.jsonl'.",
        lambda room: room.train("datasets: pairs.jsonl\n", dataset_name=""),
    ),
    Case(
        "mixture of other types",
        "A value of another type in a mixture",
        "…recipe.yaml: `split` under `datasets` must be text, got 3.",
        lambda room: room.train("datasets: [{path: a.jsonl, split: 3}]\n", dataset_name=""),
    ),
    Case(
        "environment",
        "Environment variables that are not a mapping",
        "`env` field should be a dict in the YAML file.",
        lambda room: room.train("env: [HF_HOME]\n"),
    ),
    Case(
        "unknown flag",
        "A misspelt flag",
        "unknown flag: `--learning_rat`. Did you mean `--learning_rate`?",
        lambda room: room.train("", "--learning_rat", "1e-3"),
    ),
    Case(
        "stray word",
        "A word that belongs to no flag",
        "`stray` belongs to no option.",
        lambda room: room.train("", "stray"),
    ),
    Case(
        "recipe without its flag",
        "A recipe that belongs to no flag",
        "`bct.yaml` belongs to no option. Did you mean `--config bct.yaml`?",
        lambda room: room.train("", "bct.yaml"),
    ),
    Case(
        "file without its flag",
        "A file of data that belongs to no flag",
        "`…pairs.jsonl` belongs to no option. Did you mean `--pairs …pairs.jsonl`?",
        lambda room: cli(["lint", str(room.file("pairs.jsonl", [CHAT])), "--model_name_or_path", str(room.model_dir)]),
    ),
    Case(
        "flag of evaluate",
        "The name that another command gives the pairs",
        "unknown flag: `--pairs`. Did you mean `--dataset_name`?",
        lambda room: room.train("", "--pairs", "pairs.jsonl"),
    ),
    Case(
        "flag of trainings",
        "The same the other way round",
        "unknown flag: `--dataset_name`. Did you mean `--pairs`?",
        lambda room: room.evaluate([CHAT], "--dataset_name", "pairs.jsonl"),
    ),
    Case(
        "recipe of a training given to estimate",
        "`estimate`: a recipe in place of its own options",
        "unknown key in …recipe.yaml: `lora_alpha`. That is the recipe of a training: give it as `--recipe`.",
        lambda room: cli(
            ["estimate", str(room.model_dir), "--config", str(room.file("recipe.yaml", "lora_alpha: 8\n"))]
        ),
    ),
    Case(
        "recipe of a training given to evaluate",
        "`evaluate`: a recipe in place of its own options",
        "unknown key in …recipe.yaml: `dtype`. That is the recipe of a training, whose options this command does not have.",
        lambda room: room.evaluate([CHAT], "--config", str(room.file("recipe.yaml", "dtype: bfloat16\n"))),
    ),
    Case(
        "two files",
        "Two recipes at once",
        "`--config` is given twice: put all options into one file.",
        lambda room: room.train("", "--config", "other.yaml"),
    ),
    Case(
        "unknown command",
        "A misspelt command",
        "unknown command `consistancy`. Did you mean `consistency`?",
        lambda room: cli(["consistancy"]),
    ),
    Case(
        "unknown accelerate config",
        "An unknown accelerate config",
        "--accelerate_config many_gpu is neither a file nor one of: fsdp2, multi_cpu, multi_gpu, single_gpu, zero2, zero3.",
        lambda room: cli(["consistency", "--accelerate_config", "many_gpu"]),
    ),
    Case(
        "several processes of a single one",
        "`--num_processes` with an accelerate config for a single process, which accelerate would start alone",
        "--num_processes is 2, and …single_gpu.yaml is for a single process. Give --accelerate_config multi_gpu, or multi_cpu without a GPU.",
        lambda room: cli(["consistency", "--accelerate_config", "single_gpu", "--num_processes", "2"]),
    ),
    Case(
        "no processes",
        "No process at all",
        "--num_processes must be at least 1, got 0.",
        lambda room: cli(["consistency", "--num_processes", "0"]),
    ),
    *(
        Case(
            f"{name} in env",
            f"A recipe that sets {name} in `env`",
            f"…recipe.yaml: `env` sets {name}, which can decide what code runs, or where data and tokens go. Set it in the …",
            lambda room, name=name: room.train(env={name: str(room.trap)}),
        )
        for name in ("PATH", "LD_PRELOAD", "PYTHONPATH", "HF_ENDPOINT", "https_proxy")
    ),
    *(
        Case(
            f"{name} in env",
            f"A recipe that sets {name} in `env`, too late for it to do anything",
            f"…recipe.yaml: `env` sets {name}, which libraries read before the recipe is read, so that it would do nothing. Set it in …",
            lambda room, name=name: room.train(env={name: "77"}),
        )
        for name in (
            *("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS"),
            *("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING"),
        )
    ),
]
