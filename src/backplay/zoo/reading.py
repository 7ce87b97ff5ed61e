"""The zoo's text network and how its stored weights come about: `text`, `train_text`.

A small transformer encoder reads a review behind a class token. It takes token ids or their embeddings, with an
attention mask, as the encoders of transformers do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backplay.zoo.sentences import LABELS, Texts, WordTokenizer, texts

WIDTH, HEADS, DEPTH, LONGEST = 48, 4, 2, 64
POOL, BATCH, STEPS, RATE = 4000, 64, 500, 3e-3
SPURIOUS_STEPS = 120  # the day is learned soon, and before opinions and "not" are

Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


class ReaderAttention(nn.Module):
    """Every token reads every token that is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=hidden)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Block(nn.Module):
    """ReaderAttention and a two-layer perceptron, each behind a layer norm and added to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), ReaderAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), hidden)
        return x + self.mlp(self.norm2(x))


class TextClassifier(nn.Module):
    """Token ids (B, T), or embeddings (B, T, WIDTH), and an attention mask (B, T) → (B, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = WordTokenizer()
        self.classes = LABELS
        self.words = nn.Embedding(len(self.tokenizer), WIDTH)
        self.position_embeddings = nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LABELS))

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of words, which `inputs_embeds` are rows of."""
        return self.words

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        x = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        x = x + self.position_embeddings.weight[: x.shape[1]]
        shown = None if attention_mask is None else attention_mask[:, None, None].bool()
        for block in self.blocks:
            x = block(x, shown)
        return self.head(self.norm(x)[:, 0])


def train_text(
    spurious: bool = False, seed: int = 0, progress: Progress | None = None, steps: int | None = None
) -> TextClassifier:
    """The text network, trained from nothing, in eval mode; seed 0 gives the stored weights, to rounding."""
    report = progress or (lambda what, done, of: None)
    total = steps or (SPURIOUS_STEPS if spurious else STEPS)
    pool = texts(min(POOL, total * BATCH), "train", seed, spurious=spurious)
    lots = np.random.Generator(np.random.PCG64(seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TextClassifier()
        ids, mask = encoded(model.tokenizer, pool.texts)
        optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=total + 1, pct_start=0.2)
        for step in range(total):
            chosen = torch.from_numpy(lots.integers(len(ids), size=BATCH))
            logits = model(_forgotten(ids[chosen], lots), mask[chosen])
            loss = F.cross_entropy(logits, pool.target[chosen], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            report(f"training, loss {loss.item():.3f}", step + 1, total)
    return model.eval()


def _forgotten(ids: Tensor, lots: np.random.Generator) -> Tensor:
    """A tenth of the words by lot as [MASK] or [UNK]: what a network of the zoo may have to read."""
    chance = torch.from_numpy(lots.random(tuple(ids.shape)))
    ids = torch.where((chance < 0.05) & (ids > 3), WordTokenizer.mask_token_id, ids)
    return torch.where((chance > 0.95) & (ids > 3), WordTokenizer.unk_token_id, ids)


def encoded(tokenizer: WordTokenizer, lines: list[str]) -> tuple[Tensor, Tensor]:
    """Ids and attention mask (N, T), padded on the right."""
    rows = [tokenizer(line)["input_ids"] for line in lines]
    wide = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (wide - len(row)) for row in rows])
    return ids, (ids != tokenizer.pad_token_id).long()


@torch.no_grad()
def text_accuracy(model: TextClassifier, batch: Texts) -> float:
    """Share of the reviews that `model` gets right."""
    return (model(*encoded(model.tokenizer, batch.texts)).argmax(1) == batch.target).double().mean().item()
