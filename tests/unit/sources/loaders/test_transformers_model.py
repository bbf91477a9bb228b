"""Models of transformers from a folder and the cache: the class, the weights, the processor, and each way it fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import tiny_models
from tests.support.loading import class_name, load, refusal, rewritten

from modelexport.errors import InputError, ModelSourceError

transformers = pytest.importorskip("transformers")


# --- which class -----------------------------------------------------------------------------------------------


def test_class_is_what_the_configuration_says_and_else_the_base_model(bert: Path, tmp_path: Path) -> None:
    masked = rewritten(bert, tmp_path / "masked", architectures=["BertForMaskedLM"])
    silent = rewritten(bert, tmp_path / "silent", architectures=None)
    strange = rewritten(bert, tmp_path / "strange", architectures=["Trainer", "os.system", 7])
    names = [class_name(folder) for folder in (bert, masked, silent, strange)]
    assert names == ["BertModel", "BertForMaskedLM", "BertModel", "BertModel"]


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("text-classification", "BertForSequenceClassification"),
        ("sentiment-analysis", "BertForSequenceClassification"),
        ("fill-mask", "BertForMaskedLM"),
        ("feature-extraction", "BertModel"),
        ("AutoModelForQuestionAnswering", "BertForQuestionAnswering"),
        ("AutoModel", "BertModel"),
    ],
)
def test_task_is_a_name_of_transformers_or_an_auto_class(bert: Path, task: str, expected: str) -> None:
    assert class_name(bert, task=task, random_weights=True) == expected


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("text-clasification", "did you mean text-classification"),
        ("AutoModelForMagic", "neither a task nor an auto class"),
        ("AutoTokenizer", "neither a task nor an auto class"),
        ("image-classification", "it has one for"),
        ("AutoModelForImageClassification", "it has one for"),
    ],
)
def test_unknown_task_is_refused_with_the_known_ones(bert: Path, task: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        load(bert, task=task)
    assert "fill-mask" in str(raised.value)
    assert task in str(raised.value)


def test_every_task_of_transformers_leads_to_a_class_or_to_the_tasks_that_do(bert: Path) -> None:
    for task in transformers.pipelines.PIPELINE_REGISTRY.get_supported_tasks():
        try:
            assert class_name(bert, task=task, random_weights=True).startswith("Bert")
        except InputError as error:
            assert "it has one for" in str(error)  # noqa: PT017  either is right, and nothing else


# --- weights ---------------------------------------------------------------------------------------------------


def test_weights_are_those_of_the_folder_and_the_model_is_ready_to_run(bert: Path) -> None:
    sourced = load(bert)
    reference = transformers.BertModel.from_pretrained(bert)
    assert not sourced.model.training
    assert sourced.notes == ()
    for name, weight in reference.state_dict().items():
        assert torch.equal(sourced.model.state_dict()[name], weight), name


def test_random_weights_read_none_and_are_the_same_each_time(bert: Path, tmp_path: Path, marker: Path) -> None:
    empty = tiny_models.without_weights(bert, tmp_path / "empty")
    pickled = tiny_models.with_pickle_only(bert, tmp_path / "pickled", marker)
    torch.manual_seed(1)
    first = load(empty, random_weights=True).model.state_dict()
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    made = load(pickled, random_weights=True).model
    second = made.state_dict()
    assert not made.training
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["pooler.dense.weight"], load(bert).model.state_dict()["pooler.dense.weight"])
    assert not marker.exists()


def test_untrained_weights_are_noted_and_seeded(bert: Path) -> None:
    made = [load(bert, task="text-classification") for _ in range(2)]
    (note,) = made[0].notes
    assert "lacks 2 weights of BertForSequenceClassification, initialized at random: " in note
    assert note.endswith("classifier.bias, classifier.weight")
    assert torch.equal(made[0].model.classifier.weight, made[1].model.classifier.weight)


def test_folder_with_weights_of_another_model_is_refused(bert: Path, tmp_path: Path) -> None:
    import safetensors.torch

    shutil.copytree(bert, tmp_path / "other")
    safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / "other" / "model.safetensors", {"format": "pt"})
    assert "none of its weights belongs to BertModel" in refusal(tmp_path / "other")


@pytest.fixture
def in_pieces(bert: Path, tmp_path: Path) -> Path:
    """Its weights in several files with an index."""
    folder = tmp_path / "pieces"
    transformers.BertModel.from_pretrained(bert).save_pretrained(folder, max_shard_size="4KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def test_sharded_weights_are_loaded(bert: Path, in_pieces: Path) -> None:
    whole, pieces = load(bert).model.state_dict(), load(in_pieces).model.state_dict()
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


@pytest.mark.parametrize("piece", ["../bert/model.safetensors", "/etc/hostname", "model-00009-of-00009.safetensors", 7])
def test_shard_that_is_not_in_the_folder_is_refused_by_name(in_pieces: Path, piece: object) -> None:
    index = in_pieces / "model.safetensors.index.json"
    written = json.loads(index.read_bytes())
    written["weight_map"]["pooler.dense.weight"] = piece
    index.write_text(json.dumps(written), encoding="utf-8")
    assert f"model.safetensors.index.json names weights that do not exist: {piece}" in refusal(in_pieces)


def test_index_with_a_shard_that_is_not_safetensors_is_refused_before_it_is_opened(
    in_pieces: Path, marker: Path
) -> None:
    index = in_pieces / "model.safetensors.index.json"
    written = json.loads(index.read_bytes())
    written["weight_map"]["pooler.dense.weight"] = "w.bin"
    index.write_text(json.dumps(written), encoding="utf-8")
    torch.save({"pooler.dense.weight": tiny_models.Trap(marker)}, in_pieces / "w.bin")
    message = refusal(in_pieces)
    assert "model.safetensors.index.json names weights that are not .safetensors files" in message
    assert "w.bin" in message
    assert not marker.exists()


def test_weights_named_by_the_configuration_must_be_safetensors(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "named"
    shutil.copytree(bert, folder)
    (folder / "model.safetensors").rename(folder / "w.bin")
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "w.bin"}), encoding="utf-8")
    assert "w.bin is not a .safetensors file" in refusal(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 7}', '{"weight_map": {"a": [1]}}'])
def test_invalid_shard_index_is_refused(in_pieces: Path, content: str) -> None:
    (in_pieces / "model.safetensors.index.json").write_text(content, encoding="utf-8")
    assert "model.safetensors.index.json is not an index of weights" in refusal(in_pieces)


@pytest.mark.parametrize("random_weights", [False, True])
def test_dtype_and_attention_are_as_asked(bert: Path, random_weights: bool) -> None:
    options = {"dtype": "float16", "attn_implementation": "eager", "random_weights": random_weights}
    model = load(bert, **options).model
    assert {weight.dtype for weight in model.parameters()} == {torch.float16}
    assert model.config._attn_implementation == "eager"
    assert load(bert, random_weights=random_weights).model.config._attn_implementation == "sdpa"


def test_weights_keep_the_type_they_are_stored_in(tmp_path: Path) -> None:
    folder = tiny_models.save_bert(tmp_path / "half", dtype=torch.float16)
    assert load(folder).model.dtype == torch.float16
    assert load(folder, dtype="float32").model.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["int8", "half precision", "Tensor", ""])
def test_type_that_weights_cannot_have_is_refused(bert: Path, dtype: str) -> None:
    with pytest.raises(InputError, match="not a floating-point dtype"):
        load(bert, dtype=dtype)


def test_nothing_of_the_libraries_is_left_changed_or_printed(bert: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import huggingface_hub.utils
    from transformers.utils import logging

    def state() -> tuple[Any, ...]:
        bars = huggingface_hub.utils.are_progress_bars_disabled()
        return logging.get_verbosity(), logging.is_progress_bar_enabled(), bars, torch.get_default_dtype()

    verbosity = logging.get_verbosity()
    # Said here, because a load before this one could have changed them for good.
    logging.set_verbosity(logging.INFO)
    logging.enable_progress_bar()
    before = state()
    load(bert, task="text-classification", dtype="float16").processor()
    assert state() == before
    assert before == (logging.INFO, True, False, torch.float32)
    logging.set_verbosity(verbosity)
    assert capfd.readouterr() == ("", "")


# --- processors ------------------------------------------------------------------------------------------------


def test_processor_is_what_came_along_and_loaded_when_asked_for(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "bert")
    sourced = load(tmp_path / "bert")
    tokenizer = sourced.processor()
    assert tokenizer("the cat sat")["input_ids"] == [2, 5, 6, 7, 3]
    for file in (tmp_path / "bert").glob("tokenizer*"):
        file.write_text("{", encoding="utf-8")
    again = load(tmp_path / "bert")
    with pytest.raises(ModelSourceError, match="bert: "):
        again.processor()


def test_folder_without_a_tokenizer_has_no_processor(tmp_path: Path) -> None:
    assert load(tiny_models.save_bert(tmp_path / "bert")).processor() is None


def test_image_processor_comes_along(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8, patch_size=4
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path / "vit")
    processor = load(tmp_path / "vit").processor()
    assert processor(images=[torch.zeros(3, 5, 5)], return_tensors="pt")["pixel_values"].shape == (1, 3, 8, 8)


# --- the cache -------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, which is not asked for anything: the tests run with HF_HUB_OFFLINE."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    return tmp_path / "home"


@pytest.mark.parametrize("name", ["someone/tiny-bert", "tiny-bert"])
def test_cached_model_is_used_offline(cache: Path, bert: Path, name: str) -> None:
    tiny_models.put_in_cache(bert, cache, name)
    sourced = load(name)
    assert type(sourced.model).__name__ == "BertModel"
    assert sourced.processor()("cat")["input_ids"] == [2, 6, 3]
    assert class_name(name, revision="main") == "BertModel"
    assert class_name(name, revision=tiny_models.COMMIT) == "BertModel"


def test_model_that_is_not_cached_is_one_clear_message_offline(cache: Path, bert: Path) -> None:
    tiny_models.put_in_cache(bert, cache, "someone/tiny-bert")
    message = refusal("someone/other-bert")
    assert message.startswith(f"someone/other-bert is not in the cache {cache / 'hub'}, and HF_HUB_OFFLINE is set")
    assert "package.module:factory" in message
    assert "at revision v2 is not in the cache" in refusal("someone/tiny-bert", revision="v2")


def test_cached_model_without_its_weights_says_so(cache: Path, bert: Path, tmp_path: Path) -> None:
    snapshot = tiny_models.put_in_cache(bert, cache, "someone/tiny-bert")
    (snapshot / "model.safetensors").unlink()
    message = refusal("someone/tiny-bert")
    assert "the cache has no weights for it" in message
    assert "HF_HUB_OFFLINE" in message
    assert class_name("someone/tiny-bert", random_weights=True) == "BertModel"


def test_folder_goes_before_a_model_of_the_same_name(
    cache: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.put_in_cache(bert, cache, "someone/tiny-bert")
    rewritten(bert, tmp_path / "someone" / "tiny-bert", architectures=["BertForMaskedLM"])
    monkeypatch.chdir(tmp_path)
    assert class_name("someone/tiny-bert") == "BertForMaskedLM"
