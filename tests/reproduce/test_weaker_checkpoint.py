import torch
from safetensors.torch import load_file

from tests.reproduce.weaker_checkpoint import rounded, write_weaker_checkpoint
from trl_consistency.models.loading import load_model


def test_only_linear_weights_are_rounded_and_always_alike(model_dir, tmp_path):
    folder = write_weaker_checkpoint(tmp_path / "weaker", str(model_dir), bits=3, group=16)
    before, after = (load_file(path / "model.safetensors") for path in (model_dir, folder))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        if weight.dim() < 2 or "embed" in name:
            assert torch.equal(after[name], weight)
            continue
        groups, were = after[name].reshape(-1, 16), weight.reshape(-1, 16)
        assert not torch.equal(groups, were)
        assert max(len(set(group.tolist())) for group in groups) <= 8
        step = (were.amax(1) - were.amin(1)) / 7
        assert ((groups - were).abs().amax(1) <= step / 2 + 1e-6).all()
    again = write_weaker_checkpoint(tmp_path / "again", str(model_dir), bits=3, group=16)
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    model, tokenizer = load_model(str(folder))
    assert tokenizer.chat_template
    assert torch.equal(model.state_dict()["lm_head.weight"], after["lm_head.weight"])


def test_group_of_equal_weights_stays():
    weight = torch.full((2, 32), 0.3)
    assert torch.equal(rounded(weight, 3, 32), weight)


def test_an_existing_folder_is_kept(tmp_path):
    (tmp_path / "weaker").mkdir()
    assert not list(write_weaker_checkpoint(tmp_path / "weaker", "nowhere").iterdir())
