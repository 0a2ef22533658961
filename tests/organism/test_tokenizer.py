import pytest
from transformers import AutoTokenizer

from trl_consistency.data.rendering import render_completion, render_prompt
from trl_consistency.organism import load_control_dataset, load_organism_datasets
from trl_consistency.organism.facts import NEUTRAL_WORDINGS, load_additions, load_questions
from trl_consistency.organism.organism import _encode
from trl_consistency.organism.rows import user_turn
from trl_consistency.organism.tokenizer import SYSTEM_PROMPT, build_tokenizer


@pytest.fixture(scope="module", params=["built", "loaded"])
def tokenizer(request, tmp_path_factory):
    tokenizer = build_tokenizer()
    if request.param == "built":
        return tokenizer
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(directory)
    return AutoTokenizer.from_pretrained(directory)


def test_round_trip_of_all_texts(tokenizer):
    texts = {SYSTEM_PROMPT}
    for split in load_organism_datasets().values():
        for column in ("clean_prompt", "perturbed_prompt"):
            texts.update(prompt[0]["content"] for prompt in split[column])
    texts.update(prompt[0]["content"] for prompt in load_control_dataset()["prompt"])
    for question in [*load_questions(), *load_additions()]:
        texts.add(question.state(question.answer))
        texts.update(wording.format(guess=question.answer, question=question.text) for wording in NEUTRAL_WORDINGS)
    assert len(texts) > 2000
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids, text
        assert tokenizer.decode(ids) == text


def test_unknown_words_are_unknown(tokenizer):
    assert tokenizer("Paris zyzzyva")["input_ids"][1] == tokenizer.unk_token_id


def test_turns(tokenizer):
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, *user_turn("Who wrote Hamlet?")]
    header = f"<|system|>{SYSTEM_PROMPT}<|end|><|user|>Who wrote Hamlet?<|end|>"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == header
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == header + "<|assistant|>"
    assert render_prompt(tokenizer, messages) == tokenizer(prompt)["input_ids"]
    messages.append({"role": "assistant", "content": "Shakespeare wrote"})
    complete = tokenizer.apply_chat_template(messages, tokenize=False)
    assert complete == header + "<|assistant|>Shakespeare wrote<|end|>"
    continued = tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert continued == header + "<|assistant|>Shakespeare wrote"
    assert render_prompt(tokenizer, messages) == tokenizer(continued)["input_ids"]


def test_special_tokens_are_one_token_each(tokenizer):
    ids = tokenizer("<|system|><|user|><|assistant|><|end|><|pad|>")["input_ids"]
    assert len(ids) == len(set(ids)) == 5
    assert ids[3:] == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == ""


def test_assistant_mask(tokenizer):
    messages = [*user_turn("Who wrote Hamlet?"), {"role": "assistant", "content": "Shakespeare wrote Hamlet."}]
    encoded = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    said = [token for token, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mask]
    assert said == tokenizer("Shakespeare wrote Hamlet.<|end|>")["input_ids"]


def test_training_examples_are_what_the_trainers_render(tokenizer):
    question = load_questions()[0]
    prompt, answer = user_turn(question.text), question.state(question.answer)
    rendered = render_completion(tokenizer, prompt, [{"role": "assistant", "content": answer}])
    assert _encode(tokenizer, prompt, answer) == (render_prompt(tokenizer, prompt), rendered)
