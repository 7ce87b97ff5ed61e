"""Families of transformers, tiny."""

import torch
from torch import nn

from architectures.architecture import CLASSES, F64, FLOAT32, Architecture, words

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TEXT = {"vocab_size": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": CLASSES}
# every expert's weights are looked up for its tokens; the other ways ask for values
BATCHED = {"experts_implementation": "batched_mm"}
GROUPED = {**SMALL, **TEXT, "num_key_value_heads": 2}


def hub(kind, task="SequenceClassification", **options):
    """A model of transformers from its configuration."""

    def build():
        import transformers

        config = getattr(transformers, f"{kind}Config")(**options)
        return getattr(transformers, f"{kind}{'For' if task else ''}{task}")(config)

    return build


def encoder(kind, head, decoded=False, **options):
    """An encoder without a head of its own, and one on its mean token; a decoder reads the same words."""

    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            import transformers

            self.body = getattr(transformers, kind)(getattr(transformers, head)(**options))
            self.head = nn.Linear(16, CLASSES)

        def forward(self, inputs_embeds, attention_mask):
            more = {"decoder_inputs_embeds": inputs_embeds} if self.body.config.is_encoder_decoder and decoded else {}
            hidden = self.body(inputs_embeds=inputs_embeds, attention_mask=attention_mask, **more).last_hidden_state
            return self.head(hidden.mean(1))

    return Headed


def clip():
    """A tiny CLIP; its logits are those of each image for every text."""
    import transformers

    tower = {**SMALL, "projection_dim": 8}
    text = {**tower, "vocab_size": 20, "max_position_embeddings": 8, "eos_token_id": 2, "bos_token_id": 1}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**tower, "image_size": 16, "patch_size": 8}, projection_dim=8
    )
    return transformers.CLIPModel(config)


def texts_and_images(batch):
    """Three texts, whatever the number of images."""
    ids = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 2], [1, 9, 11, 2]])
    return {
        "pixel_values": torch.randn(batch, 3, 16, 16, dtype=F64),
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
    }


def pixels(side=16, **more):
    """Images as a forward keyword."""
    return lambda batch: {"pixel_values": torch.randn(batch, 3, side, side, dtype=F64), **more}


def frames(batch):
    """Videos."""
    return {"pixel_values": torch.randn(batch, 4, 3, 16, 16, dtype=F64)}


def wave(batch):
    """A second of nothing much."""
    return {"input_values": torch.randn(batch, 400, dtype=F64)}


VISION = {**SMALL, "image_size": 16, "patch_size": 8, "num_labels": CLASSES}
HUB = {
    "falcon": Architecture(
        hub(
            "Falcon",
            **{k: v for k, v in SMALL.items() if k != "intermediate_size"},
            **TEXT,
            multi_query=True,
            new_decoder_architecture=False,
            parallel_attn=True,
        ),
        words(),
    ),
    "falcon grouped": Architecture(  # keys and values are broadcast to the queries' heads
        hub(
            "Falcon",
            **{k: v for k, v in SMALL.items() if k != "intermediate_size"},
            **TEXT,
            num_kv_heads=2,
            new_decoder_architecture=True,
        ),
        words(),
    ),
    "phi3": Architecture(hub("Phi3", "CausalLM", **GROUPED), words(), relative=FLOAT32),
    "phi": Architecture(hub("Phi", "CausalLM", **SMALL, **TEXT), words()),
    "gemma": Architecture(hub("Gemma", "CausalLM", **GROUPED, head_dim=4), words(), relative=FLOAT32),
    "gemma2": Architecture(
        hub("Gemma2", "CausalLM", **GROUPED, head_dim=4, sliding_window=3),
        words(),
        relative=FLOAT32,
        slow=True,
    ),
    "qwen2": Architecture(hub("Qwen2", **GROUPED), words(), relative=FLOAT32),
    "qwen3": Architecture(hub("Qwen3", "CausalLM", **GROUPED, head_dim=4), words(), relative=FLOAT32),
    "olmo": Architecture(hub("Olmo", "CausalLM", **GROUPED), words(), relative=FLOAT32),
    "olmo2": Architecture(hub("Olmo2", "CausalLM", **GROUPED), words(), relative=FLOAT32),
    "mistral": Architecture(hub("Mistral", "CausalLM", **GROUPED, sliding_window=3), words(), relative=FLOAT32),
    "llama classifier": Architecture(hub("Llama", **GROUPED), words(), relative=FLOAT32),
    "gpt2 classifier": Architecture(hub("GPT2", n_embd=16, n_layer=2, n_head=4, n_positions=8, **TEXT), words()),
    "gpt neox": Architecture(hub("GPTNeoX", "CausalLM", **SMALL, **TEXT), words()),
    "opt": Architecture(
        hub("OPT", "CausalLM", **SMALL, **TEXT, ffn_dim=24, word_embed_proj_dim=16, max_position_embeddings=16), words()
    ),
    "bloom": Architecture(hub("Bloom", "CausalLM", hidden_size=16, n_layer=2, n_head=4, **TEXT), words()),
    "mixtral": Architecture(
        hub("Mixtral", "CausalLM", **GROUPED, **BATCHED, num_local_experts=4, num_experts_per_tok=2),
        words(),
        relative=FLOAT32,
        slow=True,
    ),
    "qwen2 moe": Architecture(
        hub(
            "Qwen2Moe",
            "CausalLM",
            **GROUPED,
            **BATCHED,
            moe_intermediate_size=12,
            shared_expert_intermediate_size=12,
            num_experts=4,
            num_experts_per_tok=2,
        ),
        words(),
        relative=FLOAT32,
        slow=True,
    ),
    "deepseek v3": Architecture(
        hub(
            "DeepseekV3",
            "CausalLM",
            **{**SMALL, **TEXT, **BATCHED, "num_key_value_heads": 4},
            moe_intermediate_size=12,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=8,
            kv_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=4,
        ),
        words(),
        relative=10 * FLOAT32,
        slow=True,
    ),
    "modernbert": Architecture(
        hub(
            "ModernBert", **SMALL, **TEXT, cls_token_id=1, sep_token_id=2, local_attention=4, classifier_pooling="mean"
        ),
        words(),
        relative=FLOAT32,
    ),
    "deberta": Architecture(
        hub("DebertaV2", **SMALL, **TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4),
        words(),
    ),
    "albert": Architecture(hub("Albert", **SMALL, **TEXT, embedding_size=16), words()),
    "electra": Architecture(hub("Electra", **SMALL, **TEXT, embedding_size=16), words()),
    "mpnet": Architecture(hub("MPNet", **SMALL, **TEXT), words()),
    "roberta": Architecture(hub("Roberta", **SMALL, **TEXT), words()),
    "distilbert": Architecture(hub("DistilBert", dim=16, n_layers=2, n_heads=4, hidden_dim=24, **TEXT), words()),
    "t5 encoder": Architecture(
        encoder("T5EncoderModel", "T5Config", vocab_size=20, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4),
        words(),
    ),
    "bart": Architecture(
        encoder(
            "BartModel",
            "BartConfig",
            decoded=True,
            vocab_size=20,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            max_position_embeddings=16,
        ),
        words(),
    ),
    "xlnet": Architecture(hub("XLNet", d_model=16, n_layer=1, n_head=2, d_inner=24, **TEXT), words(), slow=True),
    "clip": Architecture(clip, texts_and_images, target=[1, 2]),
    "siglip": Architecture(
        hub(
            "Siglip",
            "ImageClassification",
            vision_config={**SMALL, "image_size": 16, "patch_size": 8},
            num_labels=CLASSES,
        ),
        pixels(),
    ),
    "videomae": Architecture(hub("VideoMAE", "VideoClassification", **VISION, num_frames=4, tubelet_size=2), frames),
    "timesformer": Architecture(hub("Timesformer", "VideoClassification", **VISION, num_frames=4), frames, slow=True),
    "vivit": Architecture(hub("Vivit", "VideoClassification", **VISION, num_frames=4, tubelet_size=[2, 8, 8]), frames),
    "wav2vec2": Architecture(
        hub(
            "Wav2Vec2",
            **SMALL,
            conv_dim=(8, 8),
            conv_stride=(5, 4),
            conv_kernel=(10, 8),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=8,
            num_labels=CLASSES,
        ),
        wave,
    ),
    "audio spectrogram": Architecture(
        hub("AST", "AudioClassification", **SMALL, patch_size=4, num_mel_bins=8, max_length=16, num_labels=CLASSES),
        lambda batch: {"input_values": torch.randn(batch, 16, 8, dtype=F64)},
    ),
    "patchtst": Architecture(
        hub(
            "PatchTST",
            "Classification",
            num_input_channels=2,
            context_length=16,
            patch_length=4,
            patch_stride=4,
            num_hidden_layers=1,
            d_model=8,
            num_attention_heads=2,
            ffn_dim=16,
            num_targets=CLASSES,
        ),
        lambda batch: {"past_values": torch.randn(batch, 16, 2, dtype=F64)},
    ),
    "segformer": Architecture(
        hub(
            "Segformer",
            "ImageClassification",
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[8, 8],
            patch_sizes=[3, 3],
            strides=[2, 2],
            num_attention_heads=[1, 2],
            mlp_ratios=[2, 2],
            num_labels=CLASSES,
        ),
        pixels(),
    ),
    "poolformer hub": Architecture(
        hub(
            "PoolFormer",
            "ImageClassification",
            hidden_sizes=[8, 8],
            depths=[1, 1],
            patch_sizes=[3, 3],
            strides=[2, 2],
            padding=[1, 1],
            num_encoder_blocks=2,
            mlp_ratio=2.0,
            num_labels=CLASSES,
        ),
        pixels(),
    ),
    "dinov2 registers": Architecture(
        hub(
            "Dinov2WithRegisters",
            "ImageClassification",
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=16,
            patch_size=8,
            num_labels=CLASSES,
        ),
        pixels(),
    ),
    "mamba": Architecture(
        hub("Mamba", "CausalLM", hidden_size=16, num_hidden_layers=1, state_size=4, **TEXT), words(3), relative=FLOAT32
    ),
    "rwkv": Architecture(
        hub("Rwkv", "CausalLM", hidden_size=16, num_hidden_layers=2, **TEXT),
        words(3),
        relative=FLOAT32,
        rewrites=True,
        slow=True,
    ),
}
