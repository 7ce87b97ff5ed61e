"""Every family of transformers by name, with random weights and small: how to build it and what to expect of it.

`composites` counts its attention layers whose values come from a projection through wires (S23), `constant` says
whether tokens that are no pixels take part (S26), `switch` whether its attention can be fused or spelled out.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Family:
    """One family: `build(fused)` makes the module, `size` is the side of its images."""

    build: Callable
    size: int
    composites: int = 0
    constant: bool = False
    switch: bool = False


@contextmanager
def timm_attention(fused):
    """timm reads this switch when a module is made; a few families are fused only if experiments are allowed."""
    from timm.layers import set_fused_attn, use_fused_attn

    before = use_fused_attn(), use_fused_attn(experimental=True)
    set_fused_attn(fused, experimental=fused)
    try:
        yield
    finally:
        set_fused_attn(*before)


def from_timm(name, **options):
    """A builder of a timm model."""

    def build(fused=True):
        import timm

        with timm_attention(fused):
            return timm.create_model(name, num_classes=5, **options)

    return build


def timm_mixer(fused=True):
    """Two blocks."""
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(num_classes=5, img_size=32, patch_size=16, num_blocks=2, embed_dim=16)


def timm_levit(fused=True):
    """Three stages; batch norm stands between projections and values, so that no composite is made."""
    from timm.models.levit import Levit

    return Levit(
        img_size=64,
        embed_dim=(16, 24, 32),
        key_dim=4,
        depth=(1, 1, 1),
        num_heads=(2, 3, 4),
        num_classes=5,
        attn_ratio=2,
    )


def from_hub(kind, **options):
    """A builder of a Hugging Face image classifier, 16 × 16 images in patches of 4 unless told otherwise."""

    def build(fused=True):
        import transformers

        attention = {"attn_implementation": "sdpa" if fused else "eager"}
        settings = {"image_size": 16, "patch_size": 4, "num_labels": 5, **options, **attention}
        config = getattr(transformers, f"{kind}Config")(**settings)
        return getattr(transformers, f"{kind}ForImageClassification")(config)

    return build


class ToldWeights(nn.Module):
    """torch's multi-head attention on the path that spells its weights out."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, query, key, value, need_weights=False):
        return self.layer(query, key, value, need_weights=True)


def torchvision_vit(fused=True, **options):
    """A torchvision ViT; unfused by asking every layer for its weights."""
    from torchvision.models import VisionTransformer

    settings = {"image_size": 32, "patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 24}
    model = VisionTransformer(num_classes=5, **(settings | options))
    if not fused:
        for block in model.encoder.layers:
            block.self_attention = ToldWeights(block.self_attention)
    return model


def torchvision_swin(version, fused=True):
    """Two stages with shifted windows."""
    from torchvision.models import swin_transformer as swin

    options = {"depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4], "num_classes": 5}
    if version == 2:
        options |= {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    return swin.SwinTransformer(patch_size=[4, 4], embed_dim=8, **options)


def torchvision_maxvit(fused=True):
    """Two stages of convolution, windows and grid."""
    from torchvision.models.maxvit import MaxVit

    return MaxVit(
        input_size=(32, 32),
        stem_channels=8,
        partition_size=2,
        block_channels=[8, 16],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        num_classes=5,
    )


def torchvision_convnext(fused=True):
    """Two stages."""
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=5)


def named(name, **options):
    """A torchvision model under its own name."""

    def build(fused=True):
        import torchvision.models

        return getattr(torchvision.models, name)(num_classes=5, **options)

    return build


VIT = {"embed_dim": 16, "depth": 2, "num_heads": 2}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}

REDUCED = {
    "torchvision vit": Family(torchvision_vit, 32, 2, True, True),
    "torchvision swin": Family(lambda fused=True: torchvision_swin(1), 32, 4),
    "torchvision swin v2": Family(lambda fused=True: torchvision_swin(2), 32, 4),
    "torchvision maxvit": Family(torchvision_maxvit, 32, 4),
    "torchvision convnext": Family(torchvision_convnext, 32),
    "timm vit": Family(from_timm("vit_tiny_patch16_224", img_size=32, **VIT), 32, 2, True, True),
    "timm deit": Family(from_timm("deit_tiny_patch16_224", img_size=32, **VIT), 32, 2, True, True),
    "timm deit distilled": Family(from_timm("deit_tiny_distilled_patch16_224", img_size=32, **VIT), 32, 2, True, True),
    "timm deit3": Family(from_timm("deit3_small_patch16_224", img_size=32, **VIT), 32, 2, True, True),
    "timm beit": Family(from_timm("beit_base_patch16_224", img_size=32, **VIT), 32, 2, True, True),
    "timm eva02": Family(from_timm("eva02_tiny_patch14_224", img_size=28, **VIT), 28, 2, True, True),
    # two blocks of talking heads, which have no composite, and two that update the class token
    "timm cait": Family(from_timm("cait_xxs24_224", img_size=32, **VIT), 32, 2, True, True),
    "timm xcit": Family(from_timm("xcit_nano_12_p16_224", img_size=32, **VIT), 32, 4, True, True),
    "timm mixer": Family(timm_mixer, 32),
    "timm convnext": Family(from_timm("convnext_atto", depths=(1, 1, 1, 1), dims=(4, 6, 8, 10)), 64),
    "timm convnextv2": Family(from_timm("convnextv2_atto", depths=(1, 1, 1, 1), dims=(4, 6, 8, 10)), 64),
    "timm levit": Family(timm_levit, 64),
    "timm swin": Family(
        from_timm(
            "swin_tiny_patch4_window7_224", img_size=32, embed_dim=8, depths=(2, 2), num_heads=(2, 4), window_size=4
        ),
        32,
        4,
        False,
        True,
    ),
    "timm coatnet": Family(
        from_timm("coatnet_0_224", img_size=64, depths=(1, 1, 1, 1), embed_dim=(16, 32, 32, 32), stem_width=(8, 8)),
        64,
        2,
        False,
        True,
    ),
    "timm registers": Family(from_timm("vit_small_patch14_reg4_dinov2", img_size=28, **VIT), 28, 2, True, True),
    "hub vit": Family(from_hub("ViT", **SMALL), 16, 2, True, True),
    "hub deit": Family(from_hub("DeiT", **SMALL), 16, 2, True, True),
    "hub beit": Family(from_hub("Beit", **SMALL, use_relative_position_bias=True), 16, 2, True, True),
    "hub dinov2": Family(
        from_hub("Dinov2", hidden_size=16, num_hidden_layers=2, num_attention_heads=2), 16, 2, True, True
    ),
    "hub swin": Family(
        from_hub("Swin", patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=4), 16, 4, False, True
    ),
}

# the names of the issue as they stand; images, and a few depths, are smaller where the constructor allows it; those of
# transformers are classes, which the reduced ones above are made from
NAMED = {
    "vit_b_16": Family(named("vit_b_16", image_size=64), 64, 12, True),
    "vit_b_32": Family(named("vit_b_32", image_size=64), 64, 12, True),
    "vit_l_16": Family(named("vit_l_16", image_size=32), 32, 24, True),
    "vit_l_32": Family(named("vit_l_32", image_size=64), 64, 24, True),
    "swin_t": Family(named("swin_t"), 64, 12),
    "swin_v2_t": Family(named("swin_v2_t"), 64, 12),
    "maxvit_t": Family(named("maxvit_t", input_size=(224, 224)), 224, 22),
    "convnext_tiny": Family(named("convnext_tiny"), 64),
    "vit_tiny_patch16_224": Family(from_timm("vit_tiny_patch16_224", img_size=64), 64, 12, True),
    "deit_tiny_patch16_224": Family(from_timm("deit_tiny_patch16_224", img_size=64), 64, 12, True),
    "deit_tiny_distilled_patch16_224": Family(from_timm("deit_tiny_distilled_patch16_224", img_size=64), 64, 12, True),
    "deit3_small_patch16_224": Family(from_timm("deit3_small_patch16_224", img_size=64), 64, 12, True),
    "beit_base_patch16_224": Family(from_timm("beit_base_patch16_224", img_size=64, depth=3), 64, 3, True),
    "eva02_tiny_patch14_224": Family(from_timm("eva02_tiny_patch14_224", img_size=56), 56, 12, True),
    "cait_xxs24_224": Family(from_timm("cait_xxs24_224", img_size=64, depth=6), 64, 2, True),
    "xcit_nano_12_p16_224": Family(from_timm("xcit_nano_12_p16_224", img_size=64), 64, 14, True),
    "mixer_s32_224": Family(from_timm("mixer_s32_224", img_size=64), 64),
    "convnext_atto": Family(from_timm("convnext_atto"), 64),
    "convnextv2_atto": Family(from_timm("convnextv2_atto"), 64),
    "levit_128s": Family(from_timm("levit_128s"), 224),
    "swin_tiny_patch4_window7_224": Family(from_timm("swin_tiny_patch4_window7_224", img_size=56), 56, 12, True),
    "coatnet_0_rw_224": Family(from_timm("coatnet_0_rw_224", img_size=64), 64, 9),
    "vit_small_patch14_reg4_dinov2": Family(
        from_timm("vit_small_patch14_reg4_dinov2", img_size=56, depth=3), 56, 3, True
    ),
}


def prepared(model, dtype=torch.float64):
    """Eval mode, statistics of batch norms apart from 0 and 1, no zero matrix, no norm or bias at its start."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2 and not parameter.any():
                nn.init.normal_(parameter, std=0.05)
            elif parameter.ndim == 1:
                parameter.add_(0.05 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model.to(dtype).eval()
