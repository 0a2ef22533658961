import json
import multiprocessing
import random
import time

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import GenerationConfig

from tests.helpers.models import make_model
from trl_consistency import ConsistencyError, files
from trl_consistency.generation.answer_cache import LIBRARIES, AnswerCache, TargetCache, fingerprint
from trl_consistency.generation.model_identity import answer_cache
from trl_consistency.generation.targets import generate_targets


MODEL = {"name": "tiny", "revision": None, "weights": "00"}
CONFIG = GenerationConfig(max_new_tokens=24, do_sample=True, pad_token_id=0, eos_token_id=[2])
PROMPTS = [[5 + row % 300, 6 + row // 300, *range(7, 8 + row % 5)] for row in range(120)]


def generate(model, directory=None, batch_size=2, seed=0, prompts=PROMPTS):
    cache = TargetCache(directory, MODEL) if directory else None
    return generate_targets(model, prompts, CONFIG, batch_size, seed, progress=False, cache=cache)


@pytest.fixture(scope="module")
def model():
    return make_model().eval()


@pytest.fixture(scope="module")
def expected(model):
    return generate(model)


@pytest.mark.long
def test_targets_are_the_same_with_a_cache_and_from_it(model, expected, tmp_path, monkeypatch):
    assert generate(model, tmp_path) == expected
    monkeypatch.setattr(model, "generate", lambda **_: pytest.fail("generated although cached"))
    assert generate(model, tmp_path) == expected


@pytest.mark.long
def test_killed_at_ten_random_moments(model, expected, tmp_path):
    context = multiprocessing.get_context("fork")
    start = time.monotonic()
    generate(model)
    whole = time.monotonic() - start
    generator = random.Random(0)
    progress = []
    for _ in range(10):
        process = context.Process(target=generate, args=(model, tmp_path))
        process.start()
        time.sleep(generator.uniform(0, whole / 4))
        process.kill()
        process.join()
        progress.append(len(list(tmp_path.glob("*/batch-*.json"))))
    assert progress[0] < 60, "the first run came to its end: nothing was interrupted"
    assert progress[-1] > 0, "no run got anywhere: nothing was resumed"
    assert generate(model, tmp_path) == expected


@pytest.mark.long
@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 3}, {"prompts": PROMPTS[:9]}])
def test_other_options_do_not_mix(model, tmp_path, change):
    few = {"prompts": PROMPTS[:10]}
    generate(model, tmp_path, **few)
    folders = {path.name for path in tmp_path.iterdir()}
    assert generate(model, tmp_path, **few | change) == generate(model, **few | change)
    assert len({path.name for path in tmp_path.iterdir()} - folders) == 1


def test_cache_of_another_model(tmp_path):
    TargetCache(tmp_path, MODEL)
    with pytest.raises(
        ConsistencyError, match=r"another model's \(name 'tiny', now 'other'; .*\)|\(name 'tiny', now 'other'\)"
    ):
        TargetCache(tmp_path, {**MODEL, "name": "other"})


def test_cache_of_other_versions_is_told(tmp_path, caplog):
    """Results said that the present versions had written the answers."""
    for versions in (
        {"torch": "1", "peft": "1"},
        {"torch": "1", "peft": "1"},
        {"torch": "2", "peft": "1", "new": "1"},
    ):
        assert "other versions" not in caplog.text
        TargetCache(tmp_path, {**MODEL, LIBRARIES: versions})
    assert (
        f"The cached targets in {tmp_path} are of other versions (torch 1, now 2), and are taken as they are"
        in caplog.text
    )


def test_one_cache_answers_for_one_model(model, tmp_path):
    """The second model, or another adapter of the first, got the answers of what was asked before."""
    cache = TargetCache(tmp_path, MODEL)
    generate_targets(model, PROMPTS[:2], CONFIG, 2, 0, progress=False, cache=cache)
    generate_targets(model, PROMPTS[2:4], CONFIG, 2, 0, progress=False, cache=cache)
    other = get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"])).eval()
    with pytest.raises(ConsistencyError, match=r"The cache of targets in .* is used for another model"):
        generate_targets(other, PROMPTS[:2], CONFIG, 2, 0, progress=False, cache=cache)
    cache = answer_cache(tmp_path, "tiny", other)
    generate_targets(other, PROMPTS[:2], CONFIG, 2, 0, progress=False, cache=cache)
    with (
        other.disable_adapter(),
        pytest.raises(ConsistencyError, match="or for other adapters or weights, than before"),
    ):
        generate_targets(other, PROMPTS[:2], CONFIG, 2, 0, progress=False, cache=cache)
    generate_targets(other, PROMPTS[:2], CONFIG, 2, 0, progress=False, cache=cache)


@pytest.mark.parametrize("lora", [False, True])
def test_a_model_that_was_trained_since_is_another_one(tmp_path, lora):
    """It got the answers of before its training."""
    model = get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"])) if lora else make_model()
    cache = TargetCache(tmp_path, MODEL)
    generate_targets(model.eval(), PROMPTS[:2], CONFIG, 2, 0, progress=False, cache=cache)
    generate_targets(model, PROMPTS[:2], CONFIG, 2, 0, progress=False, cache=cache)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    model(input_ids=torch.tensor([PROMPTS[0]])).logits[..., 0].sum().backward()
    optimizer.step()
    with pytest.raises(ConsistencyError, match="or for other adapters or weights, than before"):
        generate_targets(model, PROMPTS[:2], CONFIG, 2, 0, progress=False, cache=cache)


def test_a_learned_prompt_that_is_switched_off_is_another_model(tmp_path):
    model = get_peft_model(make_model(), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    cache = TargetCache(tmp_path, MODEL)
    cache.check_model(model)
    with (
        model.disable_adapter(),
        pytest.raises(ConsistencyError, match="or for other adapters or weights, than before"),
    ):
        cache.check_model(model)
    cache.check_model(model)


@pytest.mark.parametrize("damage", ["cut", "empty", "row missing", "value changed", "not a target file"])
def test_file_that_is_cut_short_or_damaged(model, tmp_path, damage):
    generate(model, tmp_path, prompts=PROMPTS[:6])
    file = sorted(tmp_path.glob("*/batch-*.json"))[1]
    content = json.loads(file.read_text())
    text = {
        "cut": file.read_text()[:-9],
        "empty": "",
        "row missing": json.dumps({**content, "completion_ids": content["completion_ids"][:-1]}),
        "value changed": json.dumps({**content, "completion_ids": [[9], *content["completion_ids"][1:]]}),
        "not a target file": "[]",
    }[damage]
    file.write_text(text)
    with pytest.raises(ConsistencyError, match=rf"{file.name} are cut short or damaged. Delete that file"):
        generate(model, tmp_path, prompts=PROMPTS[:6])
    file.unlink()
    assert generate(model, tmp_path, prompts=PROMPTS[:6]) == generate(model, prompts=PROMPTS[:6])


def test_disk_full(model, tmp_path, monkeypatch):
    generate(model, tmp_path, prompts=PROMPTS[:2])
    whole = sorted(tmp_path.rglob("*.json"))
    monkeypatch.setattr(files, "open", lambda *_, **__: open("/dev/full", "wb"), raising=False)  # noqa: SIM115
    with pytest.raises(ConsistencyError, match=r"No space left on device.*What was there before is kept"):
        generate(model, tmp_path, seed=1)
    assert sorted(tmp_path.rglob("*.json")) == whole
    assert not list(tmp_path.rglob("*.unfinished*"))


def test_fingerprint():
    model = make_model()
    before = fingerprint(model.named_parameters())
    assert fingerprint(make_model().named_parameters()) == before
    assert fingerprint(make_model(seed=1).named_parameters()) != before
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    optimizer.step()
    assert fingerprint(model.named_parameters()) != before


def test_messages_name_what_is_kept_and_where_that_is_chosen(tmp_path):
    for kind, kept, option in ((TargetCache, "targets", "target_cache_dir"), (AnswerCache, "answers", "output_dir")):
        folder = tmp_path / kept
        cache = kind(folder, MODEL).open([[1, 2]], {})
        with pytest.raises(
            ConsistencyError, match=f"The cached {kept} in .* another model's .* Choose another `{option}`"
        ):
            kind(folder, {**MODEL, "name": "other"})
        cache.put(0, [[3]])
        next(cache.path.iterdir()).write_text("{}")
        with pytest.raises(ConsistencyError, match=f"The cached {kept} in .* are cut short or damaged"):
            cache.get(0, 1)
