"""A model's folder as far as a tokenizer needs it: one token a word, and a chat template in ChatML's manner."""

import json
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}{{ '<s> ' + message['role'] + ' ' + message['content'] + ' </s> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s> assistant' }}{% if enable_thinking %}{{ ' think' }}{% endif %}{% endif %}"
)
WORDS = ["<unk>", "<s>", "</s>", "system", "user", "assistant", "think"]


def write_tokenizer(folder: Path, words: str, template: object = TEMPLATE) -> Path:
    """Write a tokenizer that knows every word of `words`; returns `folder`."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*WORDS, *words.split()]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word) for word in WORDS[:3]])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
