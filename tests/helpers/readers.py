"""Real tokenizers with small vocabularies, and tiny text models of many families with random weights."""

import functools
import warnings

import torch
from torch import nn

# whole tokens beside single letters, so that words are one token or several, whatever the tokenizer
WORDS = "the film was a dull story of in it nobody and on un we rain".split()
PARTS = "forget table believ able remember s ing ty ovember".split()
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *"ZNCüé", *",.!:'-"]
TEXTS = ["the film was unforgettable!", "nobody remembers it", "a dull, unbelievable story of Zürich in November"]
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


@functools.cache
def tokenizer(kind):
    """WordPiece with [CLS] and [SEP]; byte-level BPE without special tokens; unigram with a <s> before the text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    if kind == "wordpiece":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        known = [*special, *LETTERS, *WORDS, *(f"##{part}" for part in [*LETTERS, *PARTS])]
        raw = Tokenizer(models.WordPiece(numbered(known), unk_token="[UNK]"))
        raw.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
        raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        raw.decoder = decoders.WordPiece()
        around = [(token, raw.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        raw.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        names["mask_token"] = "[MASK]"
    elif kind == "bpe":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        merges = dict.fromkeys(
            (word[:k], word[k]) for word in [f"Ġ{w}" for w in WORDS] + PARTS for k in range(1, len(word))
        )
        known = ["<|end|>", *letters, *("".join(pair) for pair in merges)]
        raw = Tokenizer(models.BPE(numbered(known), list(merges)))
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        names = {"eos_token": "<|end|>"}
    else:
        special = ["<pad>", "<s>", "</s>", "<unk>"]
        pieces = [*(f"▁{word}" for word in WORDS), *PARTS, "▁", *LETTERS]
        scored = [(token, 0.0) for token in special] + [(p, -20.0 / len(p)) for p in dict.fromkeys(pieces)]
        raw = Tokenizer(models.Unigram(scored, unk_id=3, byte_fallback=False))
        raw.pre_tokenizer = pre_tokenizers.Metaspace()
        raw.decoder = decoders.Metaspace()
        raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **names)


def numbered(tokens):
    """A vocabulary: every token once, with its id."""
    return {token: k for k, token in enumerate(dict.fromkeys(tokens))}


class Mean(nn.Module):
    """An encoder with a head on the mean of all positions, padding too: it can only be played without padding."""

    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(16, 3)
        self.classes = ("bad", "so so", "good")

    def get_input_embeddings(self):
        return self.body.get_input_embeddings()

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None):
        read = self.body(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds)
        return self.head(read.last_hidden_state.mean(1))


# name: tokenizer, class of transformers, what it is for, its other settings
FAMILIES = {
    "bert": ("wordpiece", "Bert", "SequenceClassification", SMALL),
    "distilbert": (
        "wordpiece",
        "DistilBert",
        "SequenceClassification",
        {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24},
    ),
    "roberta": ("wordpiece", "Roberta", "SequenceClassification", SMALL),
    "modernbert": ("wordpiece", "ModernBert", "SequenceClassification", {**SMALL, "local_attention": 4}),
    "bert tokens": ("wordpiece", "Bert", "TokenClassification", SMALL),
    "bert masked": ("wordpiece", "Bert", "MaskedLM", SMALL),
    "gpt2": ("bpe", "GPT2", "LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 4}),
    "gpt2 classes": ("bpe", "GPT2", "SequenceClassification", {"n_embd": 16, "n_layer": 2, "n_head": 4}),
    "llama": ("unigram", "Llama", "CausalLM", {**SMALL, "num_key_value_heads": 2}),
    "llama classes": ("unigram", "Llama", "SequenceClassification", {**SMALL, "num_key_value_heads": 2}),
    "qwen3": ("bpe", "Qwen3", "CausalLM", {**SMALL, "num_key_value_heads": 2, "head_dim": 4}),
    "gemma": ("unigram", "Gemma", "CausalLM", {**SMALL, "num_key_value_heads": 2, "head_dim": 4}),
    "t5 encoder": (
        "unigram",
        "T5",
        "TokenClassification",
        {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4},
    ),
    "t5": (
        "unigram",
        "T5",
        "ConditionalGeneration",
        {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "mean": ("wordpiece", "Bert", "Mean", SMALL),
}
# their norms and softmax are computed in float32 whatever the model's dtype
ROUNDED = ("modernbert", "llama", "llama classes", "qwen3", "gemma", "t5", "t5 encoder")


@functools.cache
def reader(name, attention="sdpa"):
    """A model in float64 and eval mode, and its tokenizer."""
    import transformers

    kind, family, task, settings = FAMILIES[name]
    words = tokenizer(kind)
    ends = {"pad_token_id": words.pad_token_id, "bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
    if name == "gpt2 classes":
        ends["pad_token_id"] = words.eos_token_id
    if family == "ModernBert":
        ends |= {"cls_token_id": words.cls_token_id, "sep_token_id": words.sep_token_id}
    torch.manual_seed(len(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, f"{family}Config")(
            **settings, **ends, vocab_size=len(words), attn_implementation=attention
        )
        if task == "SequenceClassification" or task == "TokenClassification":
            config.id2label = {0: "bad", 1: "so so", 2: "good"}
            config.label2id = {label: k for k, label in config.id2label.items()}
        if task == "Mean":
            model = Mean(transformers.BertModel(config))
        else:
            made = f"{family}{task}" if task == "LMHeadModel" else f"{family}For{task}"
            model = getattr(transformers, made)(config)
    return shaken(model).double().eval(), words


def shaken(model):
    """Larger weights than a fresh model has, and none that are all zero: maps whose entries differ."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def digits(name):
    """How near two plays of a family have to be."""
    return 1e-5 if name in ROUNDED else 1e-10
