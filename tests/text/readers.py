"""Real tokenizers, trained on a few sentences, and tiny text models of many families with random weights."""

import functools
import warnings

import torch
from torch import nn

CORPUS = [
    "the film was wonderful and the actors were unforgettable",
    "a dull story, badly told: nobody will remember it!",
    "she said it wasn't worth the price of a ticket",
    "das Café in Zürich war überfüllt, naïve fiancée",
    "we watched it on a rainy evening in November",
    "unbelievable, unwatchable, unremarkable and unforgivable",
] * 4
TEXTS = ["the film was unforgettable!", "nobody remembers it", "a dull, unbelievable story of Zürich in November"]
SIZE = 160  # tokens, of the vocabulary that is asked for
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


@functools.cache
def tokenizer(kind):
    """WordPiece with [CLS] and [SEP]; byte-level BPE without special tokens; unigram with a <s> before the text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if kind == "wordpiece":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        raw.normalizer = normalizers.BertNormalizer(lowercase=True)
        raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        raw.decoder = decoders.WordPiece()
        raw.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=special))
        around = [(token, raw.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        raw.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        names["mask_token"] = "[MASK]"
    elif kind == "bpe":
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|end|>"], initial_alphabet=letters)
        raw.train_from_iterator(CORPUS, trainer)
        names = {"eos_token": "<|end|>"}
    else:
        raw = Tokenizer(models.Unigram())
        raw.pre_tokenizer = pre_tokenizers.Metaspace()
        raw.decoder = decoders.Metaspace()
        special = ["<pad>", "<s>", "</s>", "<unk>"]
        trainer = trainers.UnigramTrainer(vocab_size=SIZE, special_tokens=special, unk_token="<unk>")
        raw.train_from_iterator(CORPUS, trainer)
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", raw.token_to_id("<s>"))]
        )
        names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **names)


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
