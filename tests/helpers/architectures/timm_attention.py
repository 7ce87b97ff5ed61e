"""Families of timm with attention, tiny."""

from architectures.architecture import CLASSES, FLOAT32, Architecture, images, timm_class


def mobilenet_v4_hybrid():
    """Multi-query attention: one key and value for all heads, with strided keys in the first."""
    from timm.models._efficientnet_builder import decode_arch_def, round_channels
    from timm.models.mobilenetv3 import MobileNetV3

    blocks = [["uir_r1_a3_k5_s2_e4_c16"], ["mqa_r1_k3_h2_s1_v2_d8_c16", "mqa_r1_k3_h2_s1_d8_c16"], ["cn_r1_k1_s1_c24"]]
    return MobileNetV3(
        decode_arch_def(blocks),
        num_classes=CLASSES,
        stem_size=8,
        num_features=24,
        round_chs_fn=round_channels,
        layer_scale_init_value=0.5,
    )


def attentive_resnet(layer, **options):
    """timm's bottlenecks: a plain one, then one whose convolution is attention of this kind."""

    def build():
        from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg

        kinds = ("bottle", 16, 2), ("self_attn", 32, 1)
        blocks = tuple(ByoBlockCfg(kind, d=1, c=width, s=stride, gs=0, br=0.5) for kind, width, stride in kinds)
        attention = {"self_attn_layer": layer, "self_attn_kwargs": {"num_heads": 2, "dim_head": 4, **options}}
        config = ByoModelCfg(blocks, stem_chs=8, stem_pool="", fixed_input_size=layer == "bottleneck", **attention)
        return ByobNet(config, num_classes=CLASSES, zero_init_last=False, img_size=16)

    return build


def mobilevit_v2():
    """Separable self-attention: one softmax for all queries."""
    from timm.models.byobnet import ByobNet, ByoModelCfg
    from timm.models.mobilevit import _mobilevitv2_block

    blocks = tuple(_mobilevitv2_block(d=1, c=16, s=2, transformer_depth=1) for _ in range(2))
    return ByobNet(ByoModelCfg(blocks, stem_chs=8, stem_pool="", downsample="", act_layer="silu"), num_classes=CLASSES)


def multiscale_vit():
    """MViTv2: pooled queries, keys and values, decomposed relative positions, residual pooling."""
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    config = MultiScaleVitCfg(depths=(1, 1), embed_dim=8, num_heads=1, mlp_ratio=2.0, stride_q=((1, 1), (2, 2)))
    return MultiScaleVit(config, img_size=(32, 32), num_classes=CLASSES)


def caformer():
    """Separable convolutions in two stages, attention in two."""
    from timm.models import metaformer

    mixers = [metaformer.SepConv, metaformer.SepConv, metaformer.Attention, metaformer.Attention]
    norms = [metaformer.LayerNorm2dNoBias] * 2 + [metaformer.LayerNormNoBias] * 2
    sizes = {"depths": (1, 1, 1, 1), "dims": (8, 8, 32, 32)}
    return metaformer.MetaFormer(num_classes=CLASSES, token_mixers=mixers, norm_layers=norms, **sizes)


ATTENTION = {
    "mobilenetv4 hybrid": Architecture(mobilenet_v4_hybrid, images(32)),
    "convit": Architecture(
        timm_class(
            "convit", "ConVit", img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=4, local_up_to_layer=1
        ),
        images(16),
    ),
    "efficientvit mit": Architecture(
        timm_class(
            "efficientvit_mit",
            "EfficientVit",
            widths=(8, 8, 16, 16),
            depths=(1, 1, 1, 1),
            head_dim=8,
            head_widths=(24, 24),
        ),
        images(64),
        relative=FLOAT32,
        slow=True,
    ),
    "efficientvit msra": Architecture(
        timm_class(
            "efficientvit_msra",
            "EfficientVitMsra",
            img_size=64,
            embed_dim=(8, 16, 16),
            key_dim=(4, 4, 4),
            depth=(1, 1, 1),
            num_heads=(2, 2, 2),
            window_size=(2, 2, 2),
        ),
        images(64),
        slow=True,
    ),
    "coat": Architecture(
        timm_class(
            "coat",
            "CoaT",
            img_size=32,
            patch_size=4,
            embed_dims=(8, 8, 8, 8),
            serial_depths=(1, 1, 1, 1),
            parallel_depth=1,
            num_heads=2,
            mlp_ratios=(2, 2, 2, 2),
            crpe_window={3: 1, 5: 1},
        ),
        images(32),
        slow=True,
    ),
    "lambda resnet": Architecture(attentive_resnet("lambda", r=3), images(16)),
    "halonet": Architecture(attentive_resnet("halo", block_size=2, halo_size=1), images(16)),
    "botnet": Architecture(attentive_resnet("bottleneck"), images(16)),
    "mvitv2": Architecture(multiscale_vit, images(32), slow=True),
    "hiera": Architecture(
        timm_class(
            "hiera",
            "Hiera",
            img_size=(32, 32),
            embed_dim=8,
            stages=(1, 1, 1),
            q_pool=1,
            mask_unit_size=(4, 4),
            mask_unit_attn=(True, False, False),
        ),
        images(32),
        slow=True,
    ),
    "caformer": Architecture(caformer, images(64), slow=True),
    "edgenext": Architecture(
        timm_class(
            "edgenext",
            "EdgeNeXt",
            dims=(8, 8, 16, 16),
            depths=(1, 2, 2, 2),
            heads=(2, 2, 2, 2),
            kernel_sizes=(3, 3, 3, 3),
            ls_init_value=0.5,
        ),
        images(64),
        slow=True,
    ),
    "fastvit": Architecture(
        timm_class(
            "fastvit",
            "FastVit",
            layers=(1, 1, 1, 1),
            token_mixers=("repmixer", "repmixer", "repmixer", "attention"),
            embed_dims=(8, 8, 16, 32),
            layer_scale_init_value=0.5,
        ),
        images(64),
        slow=True,
    ),
    "tiny vit": Architecture(
        timm_class(
            "tiny_vit",
            "TinyVit",
            embed_dims=(8, 8, 16, 16),
            depths=(1, 1, 1, 1),
            num_heads=(1, 2, 2, 2),
            window_sizes=(2, 2, 2, 2),
        ),
        images(64),
        slow=True,
    ),
    "swinv2": Architecture(
        timm_class(
            "swin_transformer_v2",
            "SwinTransformerV2",
            img_size=32,
            embed_dim=8,
            depths=(2, 1),
            num_heads=(2, 2),
            window_size=4,
        ),
        images(32),
        slow=True,
    ),
    "davit": Architecture(
        timm_class("davit", "DaVit", depths=(1, 1), embed_dims=(8, 16), num_heads=(2, 2), window_size=4),
        images(32),
        slow=True,
    ),
    "gcvit": Architecture(
        timm_class(
            "gcvit", "GlobalContextVit", img_size=32, embed_dim=8, depths=(1, 2), num_heads=(2, 2), window_ratio=(8, 8)
        ),
        images(32),
        slow=True,
    ),
    "crossvit": Architecture(
        timm_class(
            "crossvit",
            "CrossVit",
            img_size=32,
            patch_size=(8, 16),
            embed_dim=(8, 16),
            depth=((1, 1, 0),),
            num_heads=(2, 2),
        ),
        images(32),
        slow=True,
    ),
    "pit": Architecture(
        timm_class(
            "pit",
            "PoolingVisionTransformer",
            img_size=32,
            patch_size=8,
            stride=4,
            base_dims=(8, 8),
            depth=(1, 1),
            heads=(1, 2),
        ),
        images(32),
    ),
    "visformer": Architecture(
        timm_class(
            "visformer", "Visformer", img_size=64, init_channels=8, embed_dim=16, depth=(1, 1, 1), num_heads=2, group=2
        ),
        images(64),
    ),
    "twins": Architecture(
        timm_class(
            "twins",
            "Twins",
            img_size=32,
            embed_dims=(8, 8),
            num_heads=(2, 2),
            mlp_ratios=(2, 2),
            depths=(2, 1),
            sr_ratios=(2, 1),
            wss=(4, 4),
        ),
        images(32),
        slow=True,
    ),
    "pvt": Architecture(
        timm_class(
            "pvt_v2",
            "PyramidVisionTransformerV2",
            depths=(1, 1),
            embed_dims=(8, 8),
            num_heads=(1, 2),
            sr_ratios=(2, 1),
            mlp_ratios=(2.0, 2.0),
        ),
        images(32),
    ),
    "nest": Architecture(
        timm_class(
            "nest",
            "Nest",
            img_size=32,
            num_levels=2,
            embed_dims=(8, 8),
            num_heads=(2, 2),
            depths=(1, 1),
            drop_path_rate=0.0,
        ),
        images(32),
        slow=True,
    ),
    "volo": Architecture(
        timm_class(
            "volo",
            "VOLO",
            layers=[1, 1],
            img_size=32,
            patch_size=8,
            stem_hidden_dim=8,
            embed_dims=[8, 16],
            num_heads=[2, 2],
            downsamples=(True, False),
            outlook_attention=(True, False),
        ),
        images(32),
        slow=True,
    ),
    "tnt": Architecture(
        timm_class(
            "tnt",
            "TNT",
            img_size=32,
            patch_size=16,
            embed_dim=16,
            inner_dim=8,
            depth=1,
            num_heads_inner=2,
            num_heads_outer=2,
        ),
        images(32),
    ),
    "efficientformer v2": Architecture(
        timm_class(
            "efficientformer_v2",
            "EfficientFormerV2",
            img_size=64,
            depths=(1, 1, 1, 1),
            embed_dims=(8, 8, 16, 16),
            num_vit=1,
            mlp_ratios=(2, 2, 2, 2),
        ),
        images(64),
        slow=True,
    ),
    "swiftformer": Architecture(
        timm_class("swiftformer", "SwiftFormer", layers=[1, 1, 1, 1], embed_dims=[8, 8, 8, 8]),
        images(64),
        slow=True,
    ),
    "mobilevit v2": Architecture(mobilevit_v2, images(32)),
}
