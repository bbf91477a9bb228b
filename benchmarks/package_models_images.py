"""Small models of packages for segmentation, detection, images and video."""

from __future__ import annotations

from benchmarks.package_model import IMAGE, PackageModel, floats, image, made
from torch import nn


def _nnunet() -> nn.Module:
    from dynamic_network_architectures.architectures.unet import ResidualEncoderUNet

    options = {"norm_op": nn.InstanceNorm3d, "norm_op_kwargs": {"affine": True}, "nonlin": nn.LeakyReLU}
    return ResidualEncoderUNet(1, 3, [4, 8, 16], nn.Conv3d, 3, [1, 2, 2], 1, 2, 1, conv_bias=True, **options)


def _detection_transformer() -> nn.Module:
    from kornia.models.rt_detr import RTDETR
    from kornia.models.rt_detr.architecture.hybrid_encoder import HybridEncoder
    from kornia.models.rt_detr.architecture.resnet_d import ResNetD
    from kornia.models.rt_detr.architecture.rtdetr_head import RTDETRHead

    backbone = ResNetD.from_config(18)
    head = RTDETRHead(num_classes=5, hidden_dim=32, num_queries=6, in_channels=[32] * 3, num_decoder_layers=1)
    return RTDETR(backbone, HybridEncoder(backbone.out_channels, 32, 32, 0.5), head)


def _scaled_network() -> nn.Module:
    from efficientnet_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-b0", num_classes=5, depth_coefficient=0.5, width_coefficient=0.5)


def _keypoints() -> nn.Module:
    from pytorchcv.models.centernet import centernet_resnet18_voc

    return centernet_resnet18_voc(topk=5, in_size=(64, 64))


MODELS = (
    # Segmentation and other images to images.
    PackageModel(
        "unet",
        "UNet2D",
        "segmentation",
        made(
            "unet.UNet2D",
            in_channels=1,
            out_classes=3,
            num_encoding_blocks=3,
            out_channels_first_layer=4,
            normalization="batch",
            padding=1,
        ),
        image(1),
        IMAGE,
        ((2, 32, 40), (1, 16, 24), (3, 48, 32), (2, 64, 80)),
    ),
    PackageModel(
        "dynamic-network-architectures",
        "ResidualEncoderUNet",
        "segmentation",
        _nnunet,
        (floats("batch 1 depth height width"),),
        "batch depth height width",
        ((2, 8, 16, 12), (1, 12, 8, 16), (3, 16, 12, 8), (2, 8, 24, 20)),
    ),
    PackageModel(
        "uformer-pytorch",
        "Uformer",
        "segmentation",
        made("uformer_pytorch.Uformer", dim=8, stages=2, num_blocks=1, window_size=4, dim_head=8, heads=2),
        image(),
        IMAGE,
        ((2, 32, 48), (1, 16, 16), (3, 48, 32), (2, 64, 32)),
    ),
    PackageModel(
        "x-unet",
        "XUnet",
        "segmentation",
        made(
            "x_unet.XUnet",
            dim=8,
            dim_mults=(1, 2),
            num_blocks_per_stage=(1, 1),
            num_self_attn_per_stage=(0, 1),
            nested_unet_depths=(0, 0),
            attn_heads=2,
            attn_dim_head=8,
        ),
        image(),
        IMAGE,
        ((2, 16, 24), (1, 8, 16), (3, 24, 32), (2, 40, 16)),
    ),
    PackageModel(
        "pytorchcv",
        "LEDNet",
        "segmentation",
        made("pytorchcv.models.lednet.lednet_cityscapes", num_classes=4),
        image(),
        IMAGE,
        ((1, 64, 128), (2, 64, 64), (3, 128, 64), (2, 128, 192)),
    ),
    PackageModel(
        "pytorchcv",
        "CGNet",
        "segmentation",
        made("pytorchcv.models.cgnet.cgnet_cityscapes", num_classes=4, aux=False),
        image(),
        IMAGE,
        ((2, 64, 96), (1, 32, 64), (3, 96, 64), (2, 128, 72)),
    ),
    # Detection.
    PackageModel(
        "pytorchcv",
        "CenterNet",
        "detection",
        _keypoints,
        image(),
        IMAGE,
        ((2, 64, 96), (1, 32, 64), (3, 96, 64), (2, 128, 160)),
    ),
    PackageModel(
        "pytorchcv",
        "LFFD",
        "detection",
        made("pytorchcv.models.lffd.lffd20x5s320v2_widerface"),
        image(),
        IMAGE,
        ((1, 128, 160), (2, 128, 128), (3, 160, 192), (1, 224, 128)),
    ),
    PackageModel(
        "kornia",
        "RT-DETR",
        "detection",
        _detection_transformer,
        image(),
        IMAGE,
        ((2, 64, 96), (1, 96, 64), (3, 64, 128), (2, 128, 160)),
    ),
    PackageModel(
        "kornia",
        "YuNet",
        "detection",
        made("kornia.models.yunet.YuNet", "test", False),
        image(),
        IMAGE,
        ((2, 64, 96), (1, 64, 64), (3, 96, 128), (2, 160, 96)),
    ),
    # Images and video to classes.
    PackageModel(
        "efficientnet-pytorch",
        "EfficientNet",
        "images",
        _scaled_network,
        image(),
        IMAGE,
        ((2, 64, 64), (1, 32, 48), (3, 64, 96), (2, 128, 64)),
    ),
    PackageModel(
        "perceiver-pytorch",
        "Perceiver",
        "images",
        made(
            "perceiver_pytorch.Perceiver",
            input_channels=3,
            num_freq_bands=3,
            depth=1,
            max_freq=8.0,
            num_latents=6,
            latent_dim=16,
            latent_heads=2,
            cross_dim_head=8,
            latent_dim_head=8,
            num_classes=4,
        ),
        (floats("batch height width 3"),),
        IMAGE,
        ((2, 8, 12), (1, 5, 7), (3, 12, 8), (2, 20, 16)),
    ),
    PackageModel(
        "timesformer-pytorch",
        "TimeSformer",
        "video",
        made(
            "timesformer_pytorch.TimeSformer",
            dim=16,
            num_frames=8,
            num_classes=4,
            image_size=32,
            patch_size=8,
            depth=1,
            heads=2,
            dim_head=8,
        ),
        (floats("batch frames 3 height width"),),
        "batch frames height width",
        ((2, 3, 16, 24), (1, 2, 16, 16), (3, 4, 24, 32), (2, 5, 32, 16)),
    ),
)
