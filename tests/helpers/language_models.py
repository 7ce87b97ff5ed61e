"""Small language models with random weights, and words for them."""

import functools
import warnings

import torch

import backplay as bp
from families import prepared

TOKENS, WIDTH = 5, 16
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": WIDTH, "intermediate_size": 24}


@functools.cache
def build(name, attention="sdpa"):
    """A small model with random weights and its network; logits (B, 3), or (B, T, 20) of the causal one."""
    import transformers

    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "bert":
            config = transformers.BertConfig(**SMALL, vocab_size=20, num_labels=3, attn_implementation=attention)
            model = transformers.BertForSequenceClassification(config)
        elif name == "gpt2":
            config = transformers.GPT2Config(
                n_embd=WIDTH,
                n_layer=2,
                n_head=4,
                vocab_size=20,
                num_labels=3,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                attn_implementation=attention,
            )
            model = transformers.GPT2ForSequenceClassification(config)
        else:
            config = transformers.LlamaConfig(
                **SMALL, vocab_size=20, num_key_value_heads=2, attn_implementation=attention
            )
            model = transformers.LlamaForCausalLM(config)
        model = prepared(model)
    return model, bp.capture(model, words())


def words(mask=None, batch=2):
    """Embeddings and an attention mask."""
    generator = torch.Generator().manual_seed(5)
    embeds = torch.randn(batch, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    mask = torch.ones(batch, TOKENS, dtype=torch.long) if mask is None else mask
    return {"inputs_embeds": embeds, "attention_mask": mask}
