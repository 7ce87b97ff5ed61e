"""Families of timm without attention, tiny."""

from torch import nn

from architectures.architecture import CLASSES, Architecture, images, timm_class


def high_resolution():
    """HRNet: four resolutions side by side, each with one block."""
    from timm.models.hrnet import HighResolutionNet

    def stage(branches, kind="BASIC"):
        widths = tuple(4 * 2**k for k in range(branches))
        return {
            "num_modules": 1,
            "num_branches": branches,
            "block_type": kind,
            "num_blocks": (1,) * branches,
            "num_channels": widths,
            "fuse_method": "SUM",
        }

    config = {"stem_width": 8, "stage1": stage(1, "BOTTLENECK")} | {f"stage{n}": stage(n) for n in (2, 3, 4)}
    return HighResolutionNet(config, num_classes=CLASSES)


def ghostnet_v2():
    """Cheap copies of features, and long-range attention by pooling and up-sampling."""
    from timm.models.ghostnet import GhostNet

    cfgs = [[[3, 8, 8, 0, 1]], [[3, 16, 12, 0.25, 2]], [[3, 16, 12, 0, 1]], [[3, 24, 16, 0.25, 2]]]
    return GhostNet(cfgs, num_classes=CLASSES, width=1.0, version="v2")


def mlp_blocks(block, **options):
    """MLPs over tokens and channels, two blocks."""

    def build():
        from timm.models import mlp_mixer

        named = {k: getattr(mlp_mixer, v) for k, v in options.items()}
        sizes = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 12, "mlp_ratio": 4}
        return mlp_mixer.MlpMixer(num_classes=CLASSES, block_layer=getattr(mlp_mixer, block), **sizes, **named)

    return build


def nfnet():
    """Scaled weight standardisation, no norms."""
    from timm.models.nfnet import NfCfg, NormFreeNet

    config = NfCfg(
        depths=(1, 1, 1, 1), channels=(8, 8, 16, 16), stem_chs=8, attn_layer="se", attn_kwargs={}, act_layer="silu"
    )
    return NormFreeNet(config, num_classes=CLASSES)


def regnet_z():
    """RegNet with linear ends and squeeze-and-excitation."""
    from timm.models.regnet import RegNet, RegNetCfg

    config = RegNetCfg(depth=8, w0=8, wa=8.0, wm=2.0, group_size=4, se_ratio=0.25, stem_width=8, act_layer="silu")
    return RegNet(config, num_classes=CLASSES, zero_init_last=False)


def vovnet():
    """One-shot aggregation with effective squeeze-and-excitation."""
    from timm.models.vovnet import VovNet

    config = {
        "stem_chs": [8, 8, 8],
        "stage_conv_chs": [8, 8, 8, 8],
        "stage_out_chs": [8, 8, 8, 8],
        "layer_per_block": 2,
        "block_per_stage": [1, 1, 1, 1],
        "residual": True,
        "depthwise": False,
        "attn": "ese",
    }
    return VovNet(config, num_classes=CLASSES)


class NasnetCells(nn.Module):
    """The stem and one normal cell of NASNet-A: max pooling pads with −∞."""

    def __init__(self):
        super().__init__()
        from timm.models.nasnet import CellStem0, FirstCell

        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.cell_stem = CellStem0(8, num_channels=4, pad_type="same")
        self.cell = FirstCell(8, 4, 16, 8, pad_type="same")
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x):
        stem = self.stem(x)
        cell = self.cell_stem(stem)
        return self.head(self.cell(cell, stem).relu().mean((2, 3)))


class PnasnetCells(nn.Module):
    """The stem and one cell of PNASNet-5."""

    def __init__(self):
        super().__init__()
        from timm.models.pnasnet import Cell, CellStem0

        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.cell_stem = CellStem0(in_chs_left=8, out_chs_left=4, in_chs_right=8, out_chs_right=4, pad_type="same")
        self.cell = Cell(
            in_chs_left=8,
            out_chs_left=4,
            in_chs_right=20,
            out_chs_right=4,
            pad_type="same",
            match_prev_layer_dims=True,
            is_reduction=True,
        )
        self.head = nn.Linear(20, CLASSES)

    def forward(self, x):
        stem = self.stem(x)
        return self.head(self.cell(stem, self.cell_stem(stem)).relu().mean((2, 3)))


CONVOLUTION = {
    "nasnet": Architecture(NasnetCells, images(32), slow=True),
    "pnasnet": Architecture(PnasnetCells, images(32), slow=True),
    "hrnet": Architecture(high_resolution, images(64), slow=True),
    "ghostnetv2": Architecture(ghostnet_v2, images(32), slow=True),
    "mambaout": Architecture(timm_class("mambaout", "MambaOut", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8)), images(64)),
    "poolformer": Architecture(
        timm_class("metaformer", "MetaFormer", depths=(1, 1, 1, 1), dims=(4, 8, 8, 8)), images(64)
    ),
    "resmlp": Architecture(mlp_blocks("ResBlock", norm_layer="Affine"), images(32)),
    "gmlp": Architecture(mlp_blocks("SpatialGatingBlock", mlp_layer="GatedMlp"), images(32)),
    "inception next": Architecture(
        timm_class("inception_next", "MetaNeXt", depths=(1, 1, 1, 1), dims=(16, 16, 16, 16), ls_init_value=0.5),
        images(64),
    ),
    "repvit": Architecture(timm_class("repvit", "RepVit", embed_dim=(8, 8), depth=(1, 1)), images(32)),
    "focalnet": Architecture(
        timm_class("focalnet", "FocalNet", embed_dim=8, depths=(1, 1), focal_levels=(2, 2), focal_windows=(3, 3)),
        images(32),
    ),
    "nfnet": Architecture(nfnet, images(32)),
    "regnet": Architecture(regnet_z, images(32), slow=True),
    "rexnet": Architecture(
        timm_class("rexnet", "RexNet", width_mult=0.2, depth_mult=0.4, initial_chs=16, final_chs=40, ch_div=4),
        images(32),
        slow=True,
    ),
    "sequencer": Architecture(
        timm_class(
            "sequencer",
            "Sequencer2d",
            img_size=16,
            layers=(1, 1),
            patch_sizes=(4, 2),
            embed_dims=(8, 8),
            hidden_sizes=(4, 4),
            mlp_ratios=(2.0, 2.0),
        ),
        images(16),
        refused="recurrent",
    ),
    "dla": Architecture(
        timm_class("dla", "DLA", levels=(1, 1, 1, 2, 1, 1), channels=(4, 4, 8, 8, 8, 8), base_width=16),
        images(64),
        slow=True,
    ),
    "vovnet": Architecture(vovnet, images(32)),
    "starnet": Architecture(timm_class("starnet", "StarNet", base_dim=8, depths=[1, 1]), images(32)),
    "convmixer": Architecture(
        timm_class("convmixer", "ConvMixer", dim=8, depth=2, kernel_size=3, patch_size=4), images(16)
    ),
    "fasternet": Architecture(
        timm_class("fasternet", "FasterNet", embed_dim=8, depths=(1, 1), feature_dim=16), images(32)
    ),
}
