"""Folders with tiny models as HuggingFace lays them out, whole and broken, and a cache of the hub with one in it."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat")

# Writes a file as soon as it is imported.
REMOTE_CODE = """
from pathlib import Path
import torch
from transformers import PreTrainedConfig, PreTrainedModel

Path({marker!r}).touch()


class OwnConfig(PreTrainedConfig):
    model_type = "own-model-with-code"


class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.lin = torch.nn.Linear(4, 4)
        self.post_init()

    def forward(self, x):
        return self.lin(x)
"""


class Trap:
    """Unpickled, it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


def pickled_trap(marker: Path) -> bytes:
    """A checkpoint that writes the marker when it is opened."""
    return pickle.dumps(Trap(marker))


def make_bert() -> Any:
    """A BERT of one layer, always with the same weights."""
    import transformers

    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    return transformers.BertModel(config).eval()


def make_tokenizer() -> Any:
    """A tokenizer of a few words."""
    import transformers

    return transformers.BertTokenizer(vocab={word: number for number, word in enumerate(VOCABULARY)})


def save_bert(folder: Path, *, tokenizer: bool = False, dtype: torch.dtype = torch.float32) -> Path:
    """The BERT in a folder, with its tokenizer if asked for."""
    make_bert().to(dtype).save_pretrained(folder)
    if tokenizer:
        make_tokenizer().save_pretrained(folder)
    return folder


def save_pipeline(folder: Path) -> Path:
    """A diffusers pipeline of a UNet, a scheduler and a text encoder of transformers."""
    import diffusers

    torch.manual_seed(3)
    unet = diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8,),
        norm_num_groups=4,
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
    )
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler()).save_pretrained(folder)
    save_bert(folder / "text_encoder")
    return folder


def without_weights(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    (folder / "model.safetensors").unlink()
    return folder


def with_pickle_only(source: Path, folder: Path, marker: Path) -> Path:
    """Its weights are a pickle that writes the marker when it is opened."""
    without_weights(source, folder)
    (folder / "pytorch_model.bin").write_bytes(pickled_trap(marker))
    return folder


def with_own_code(folder: Path, marker: Path) -> Path:
    """A model of a class that comes along as Python code."""
    folder.mkdir()
    (folder / "modeling_own.py").write_text(REMOTE_CODE.format(marker=str(marker)), encoding="utf-8")
    written = {
        "model_type": "own-model-with-code",
        "architectures": ["OwnModel"],
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"},
    }
    (folder / "config.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def put_in_cache(source: Path, home: Path, name: str) -> Path:
    """Lays a model out in a cache folder as huggingface_hub does: blobs, and a snapshot of links to them."""
    root = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    for number, file in enumerate(sorted(source.iterdir())):
        shutil.copy(file, root / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    return snapshot
