"""Settings made small for the sweep: what they have to do with each other stays."""

from __future__ import annotations

import pytest
import torch
from benchmarks.sweep_candidates import Candidate, _completed, build, builders
from benchmarks.sweep_shrinking import LEVELS, Shrinking, shrink_configuration

SETTINGS = {
    "num_layers": 24,
    "num_attention_heads": 70,
    "attention_head_dim": 32,
    "num_cross_attention_heads": 20,
    "cross_attention_head_dim": 112,
    "cross_attention_dim": 2240,
    "in_channels": 16,
}


@pytest.mark.parametrize("level", LEVELS)
def test_products_of_heads_and_their_width_stay_equal(level: object) -> None:
    small = Shrinking.of(level, SETTINGS, related=True).shrink(SETTINGS)  # type: ignore[arg-type]
    product = small["num_attention_heads"] * small["attention_head_dim"]
    assert small["num_cross_attention_heads"] * small["cross_attention_head_dim"] == product
    assert small["cross_attention_dim"] == product


@pytest.mark.parametrize("level", LEVELS)
def test_number_that_is_the_sum_of_a_list_stays_one(level: object) -> None:
    settings = {"axes_dims": (16, 56, 56), "attention_head_dim": 128, "num_attention_heads": 24, "inner_dim": 3072}
    small = Shrinking.of(level, settings, related=True).shrink(settings)  # type: ignore[arg-type]
    assert sum(small["axes_dims"]) == small["attention_head_dim"]
    assert small["attention_head_dim"] * small["num_attention_heads"] == small["inner_dim"]


def test_channels_of_blocks_are_not_taken_as_the_number_of_layers() -> None:
    small = Shrinking(LEVELS[0]).shrink({"block_out_channels": (64, 128), "layers_per_block": 3, "norm_num_groups": 32})
    assert small == {"block_out_channels": (4, 64), "layers_per_block": 2, "norm_num_groups": 4}


def test_list_of_certain_layers_names_layers_that_are_left() -> None:
    small = Shrinking(LEVELS[0]).shrink({"num_layers": 40, "vace_layers": [0, 5, 10, 35], "depths": [2, 2, 6, 2]})
    assert small == {"num_layers": 2, "vace_layers": [0, 1], "depths": [2, 2, 2, 2]}


def test_few_channels_at_the_beginning_of_a_list_stay() -> None:
    assert Shrinking(LEVELS[0]).shrink({"stem_channels": [3, 33, 48]}) == {"stem_channels": [3, 4, 4]}


def test_vocabulary_that_a_configuration_lacks_is_synthesized() -> None:
    pytest.importorskip("transformers")
    how, make = next(builders(Candidate("transformers", "esm")))
    assert how == "level 0"
    assert make().config.vocab_size == LEVELS[0].vocabulary


def test_token_that_stands_for_an_image_has_a_number() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Blip2Config()
    assert config.image_token_index is None
    assert 0 < shrink_configuration(config, LEVELS[0]).image_token_index < LEVELS[0].vocabulary


class Asking:
    """Has no number for what it needs."""

    def __init__(self, width: int | None = None, name: str | None = None, *, depth: int | None = None) -> None:
        self.size = width * 2  # type: ignore[operator]
        if depth is None:
            raise ValueError("`depth` must be provided")
        self.name = name


def test_missing_number_is_synthesized() -> None:
    made = _completed(Asking, {"width": None, "name": None, "depth": None})
    assert made.size == 8
    assert made.name is None
    with pytest.raises(TypeError):
        _completed(Asking, {"width": {}, "depth": None})


def test_heads_that_double_from_stage_to_stage_are_small_together() -> None:
    small = Shrinking(LEVELS[0]).shrink({"num_heads": [3, 6, 12, 24], "channels": [3, 64, 128]})
    assert all(64 % heads == 0 for heads in small["num_heads"])
    assert small["channels"][0] == 3


def test_number_of_heads_is_divided_with_the_sizes_that_it_divides() -> None:
    transformers = pytest.importorskip("transformers")
    config = shrink_configuration(transformers.HeliumConfig(), LEVELS[1])
    assert config.num_attention_heads * config.head_dim == config.hidden_size
    assert config.head_dim == transformers.HeliumConfig().head_dim


def test_configuration_is_unchanged_at_the_level_without_sizes() -> None:
    transformers = pytest.importorskip("transformers")
    unchanged = next(level for level in LEVELS if level.size is None)
    assert tuple(shrink_configuration(transformers.HieraConfig(), unchanged).patch_size) == (7, 7)
    nested = shrink_configuration(transformers.DFineConfig(), unchanged).backbone_config
    assert nested.out_features == transformers.DFineConfig().backbone_config.out_features


def test_kernel_with_a_middle_keeps_one() -> None:
    assert Shrinking(LEVELS[0]).shrink({"conv_kernel_size": 65, "kernels": [7, 7], "window": 7, "length": 77}) == {
        "conv_kernel_size": 3,
        "kernels": [3, 3],
        "window": 3,
        "length": 64,
    }


@pytest.mark.parametrize(("name", "field"), [("dots1", "n_routed_experts"), ("chameleon", "vocabulary_map")])
def test_value_that_a_default_configuration_lacks_is_synthesized(name: str, field: str) -> None:
    pytest.importorskip("transformers")
    _, make = next(builders(Candidate("transformers", name)))
    assert getattr(make().config, field) is not None


def test_error_of_a_model_too_large_to_build_is_the_one_that_it_has_without_memory() -> None:
    def make() -> torch.nn.Module:
        if torch.get_default_device().type == "meta":
            raise KeyError("full_attention")
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(KeyError):
        build(make)


def test_numbers_of_positions_stay() -> None:
    assert Shrinking(LEVELS[0]).shrink({"axes_lens": [1024, 512, 512]}) == {"axes_lens": [1024, 512, 512]}


def test_few_heads_divide_the_others_when_these_are_divided() -> None:
    settings = {"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584, "num_experts": 8}
    small = Shrinking.of(LEVELS[1], settings).shrink(settings)
    assert small == {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 896, "num_experts": 4}


def test_level_that_divides_widths_keeps_every_proportion() -> None:
    level = next(level for level in LEVELS if level.divisor and level.divides_widths)
    settings = {"dim": 3840, "n_heads": 30, "axes_dims": [32, 48, 48], "head_dim": 128, "channels": 64}
    small = Shrinking.of(level, settings).shrink(settings)
    assert small == {"dim": 480, "n_heads": 30, "axes_dims": [4, 6, 6], "head_dim": 16, "channels": 8}


def test_level_with_fewer_layers_alone_keeps_all_sizes() -> None:
    level = next(level for level in LEVELS if level.size is None and not level.changes_nothing)
    settings = {"num_layers": 24, "hidden_size": 1008, "num_heads": 12, "kernel": 7}
    assert Shrinking(level).shrink(settings) == {**settings, "num_layers": 2}
