"""What README and docs/transformers.md show of IndexMemCache runs as it stands there; and texts of whole models."""

import re
from pathlib import Path

import pytest
import torch
from generating import padded
from transformers import AutoModelForCausalLM

from indexmem import IndexMemCache
from indexmem.config.schema import MethodConfig, ModelConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.selection import tokens_left
from indexmem.models.assets import ensure_model, modules_folder
from indexmem.models.backbone import load_backbone, resolve

REPOSITORY = Path(__file__).parents[2]
HUB, BUILT_IN = "HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m-instruct"


def snippets(page):
    """Python of a page that has to do with the cache, in order; later parts go on from earlier ones."""
    found = re.findall(r"```python\n(.*?)```", (REPOSITORY / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return [snippet for snippet in found if "IndexMemCache" in snippet]


@pytest.mark.model
@pytest.mark.parametrize(("page", "count"), [("README.md", 1), ("docs/transformers.md", 2)])
def test_snippets_run(page, count, capsys):
    """The model of the Hub is here as a built-in one."""
    parts = snippets(page)
    assert len(parts) == count
    code = "\n".join(parts)
    assert f'"{HUB}"' in code
    exec(code.replace(f'"{HUB}"', repr(str(ensure_model(BUILT_IN)))), {})
    said = capsys.readouterr().out
    assert "harbour" in said if page == "README.md" else "bytes of K and V" in said


@pytest.mark.model
@pytest.mark.parametrize(("name", "ratio"), [("indexmem", 0.9), ("keydiff", 0.5)])
def test_text_of_the_testbed_is_the_engines(name, ratio):
    """Rows of a batch ask for one of several numbers in contexts of unequal length."""
    config, folder = ModelConfig(id="testbed"), str(modules_folder("testbed-modules"))
    backbone = load_backbone(config)
    model = AutoModelForCausalLM.from_pretrained(resolve(config), dtype=torch.float32).eval()
    filler = "The grass is green. The sky is blue. " * 12
    numbers = {"harbour": 4821907, "lantern": 7301452, "meadow": 1928374}
    facts = [f"The special magic number for {key} is {number}. " for key, number in numbers.items()]
    rows = [filler + fact + filler * (n + 1) for n, fact in enumerate(facts)]
    contexts = [backbone.tokenizer(row)["input_ids"] for row in rows]
    question = backbone.tokenizer("\nThe special magic number is")["input_ids"]
    method = make_method(MethodConfig(name=name), MethodContext(backbone.geometry, checkpoint=folder, floor=0.1))
    expected = []
    for context in contexts:
        done = prefill(backbone, context, {name: method}, sinks=4)
        row = method.compress(done.context, done.rankings_HL[name], tokens_left(len(context), ratio))
        (answer,) = decode(backbone, [DecodeRow(row, len(context), question, 10, min_new_tokens=10)])
        expected.append(answer.token_ids)
    cache, inputs = IndexMemCache(model, name, ratio, modules=folder), padded(contexts)
    with torch.no_grad():
        model(**inputs, past_key_values=cache)
    ids = torch.cat((inputs["input_ids"], torch.tensor([question] * len(rows))), dim=1)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, len(question)), value=1)
    settings = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    out = model.generate(ids, attention_mask=mask, past_key_values=cache, **settings)
    assert out[:, ids.shape[1] :].tolist() == expected
