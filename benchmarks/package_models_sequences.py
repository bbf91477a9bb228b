"""Small models of packages for speech, sound, time series and sequences."""

from __future__ import annotations

import torch
from benchmarks.package_model import BATCH, SEQUENCE, PackageModel, floats, fractions, ids, lengths, made
from torch import nn


def _diffwave() -> nn.Module:
    from diffwave.model import DiffWave
    from diffwave.params import AttrDict

    steps = [0.0001, 0.001, 0.01, 0.05]
    options = {"n_mels": 20, "residual_layers": 4, "residual_channels": 16, "dilation_cycle_length": 2}
    return DiffWave(AttrDict(noise_schedule=steps, unconditional=False, **options))


class _MaskedFilters(nn.Module):
    """Separation with learned filters: encode, mask, decode, as the models of that package's authors do."""

    def __init__(self) -> None:
        from asteroid_filterbanks import Decoder, Encoder, FreeFB

        super().__init__()
        self.encoder = Encoder(FreeFB(n_filters=32, kernel_size=16, stride=8))
        self.mask = nn.Sequential(nn.Conv1d(32, 32, 3, padding=1), nn.Sigmoid())
        self.decoder = Decoder(FreeFB(n_filters=32, kernel_size=16, stride=8))

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        encoded = self.encoder(wave)
        return self.decoder(encoded * self.mask(encoded))


def _mamba() -> nn.Module:
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=16, n_layers=2, d_state=4))


def _xlstm() -> nn.Module:
    from xlstm import mLSTMBlockConfig, mLSTMLayerConfig, xLSTMBlockStack, xLSTMBlockStackConfig

    block = mLSTMBlockConfig(mlstm=mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=2))
    config = xLSTMBlockStackConfig(mlstm_block=block, context_length=64, num_blocks=2, embedding_dim=32)
    return xLSTMBlockStack(config)


MODELS = (
    # Speech and sound.
    PackageModel(
        "conformer",
        "Conformer",
        "speech",
        made("conformer.Conformer", 32, depth=2, heads=2, dim_head=16),
        (floats("batch time 32"),),
        SEQUENCE,
        ((2, 40), (1, 17), (3, 64), (5, 101)),
    ),
    PackageModel(
        "snac",
        "SNAC",
        "speech",
        made(
            "snac.SNAC",
            encoder_dim=8,
            encoder_rates=[2, 4],
            decoder_dim=32,
            decoder_rates=[4, 2],
            attn_window_size=None,
            codebook_size=16,
            codebook_dim=4,
            vq_strides=[2, 1],
            noise=False,
        ),
        (floats("batch 1 time"),),
        SEQUENCE,
        ((2, 128), (1, 64), (3, 160), (2, 320)),
    ),
    PackageModel(
        "denoiser",
        "Demucs",
        "speech",
        made("denoiser.demucs.Demucs", hidden=8, depth=3, resample=2),
        (floats("batch 1 time"),),
        SEQUENCE,
        ((2, 800), (1, 597), (3, 1000), (2, 1709)),
    ),
    PackageModel(
        "diffwave",
        "DiffWave",
        "speech",
        _diffwave,
        (floats("batch 256*frames"), floats("batch 20 frames"), ids("batch", 4)),
        "batch frames",
        ((2, 3), (1, 2), (3, 5), (4, 8)),
    ),
    PackageModel(
        "wavegrad",
        "WaveGrad",
        "speech",
        made("wavegrad.model.WaveGrad", None),
        (floats("batch 300*frames"), floats("batch 128 frames"), fractions("batch")),
        "batch frames",
        ((2, 3), (1, 2), (3, 4), (2, 6)),
    ),
    PackageModel(
        "asteroid-filterbanks",
        "mask of learned filters",
        "speech",
        _MaskedFilters,
        (floats("batch 1 time"),),
        SEQUENCE,
        ((2, 400), (1, 160), (3, 520), (2, 1024)),
    ),
    PackageModel(
        "pytorchcv",
        "QuartzNet",
        "speech",
        made("pytorchcv.models.quartznet.quartznet5x5_en_ls", in_channels=64, from_audio=False),
        (floats("batch 64 time"), lengths("batch", "time")),
        SEQUENCE,
        ((2, 64), (1, 33), (3, 100), (2, 151)),
    ),
    # Time series and sequences.
    PackageModel(
        "pytorch-tcn",
        "TCN",
        "time series",
        made("pytorch_tcn.TCN", 4, [8, 8, 8], kernel_size=3),
        (floats("batch 4 time"),),
        SEQUENCE,
        ((2, 30), (1, 11), (3, 47), (5, 96)),
    ),
    PackageModel(
        "ncps",
        "CfC",
        "time series",
        made("ncps.torch.CfC", 5, 12, proj_size=3),
        (floats("batch time 5"),),
        SEQUENCE,
        ((2, 8), (1, 5), (3, 12), (4, 20)),
    ),
    PackageModel(
        "pytorch-tsmixer",
        "TSMixer",
        "time series",
        made("torchtsmixer.TSMixer", 24, 6, 5),
        (floats("batch 24 5"),),
        BATCH,
        ((4,), (1,), (7,), (16,)),
    ),
    PackageModel(
        "iTransformer",
        "iTransformer",
        "time series",
        made(
            "iTransformer.iTransformer",
            num_variates=5,
            lookback_len=24,
            depth=1,
            dim=32,
            dim_head=8,
            heads=2,
            pred_length=(6, 12),
            flash_attn=False,
        ),
        (floats("batch 24 5"),),
        BATCH,
        ((2,), (1,), (3,), (8,)),
    ),
    PackageModel(
        "gateloop-transformer",
        "Transformer",
        "time series",
        made(
            "gateloop_transformer.Transformer",
            16,
            num_tokens=40,
            depth=2,
            dim_head=8,
            heads=2,
            use_gate_looped_attn=False,
        ),
        (ids("batch time", 40),),
        SEQUENCE,
        ((2, 12), (1, 7), (3, 16), (2, 33)),
    ),
    PackageModel(
        "minGRU-pytorch",
        "minGRU",
        "time series",
        made("minGRU_pytorch.minGRU", 16, expansion_factor=1.5),
        (floats("batch time 16"),),
        SEQUENCE,
        ((2, 12), (1, 5), (3, 20), (4, 50)),
    ),
    PackageModel(
        "xlstm",
        "xLSTMBlockStack",
        "time series",
        _xlstm,
        (floats("batch time 32"),),
        SEQUENCE,
        ((2, 16), (1, 9), (3, 32), (2, 64)),
    ),
    PackageModel(
        "mambapy",
        "Mamba",
        "time series",
        _mamba,
        (floats("batch time 16"),),
        SEQUENCE,
        ((2, 16), (1, 7), (3, 24), (2, 33)),
    ),
)
