"""A text model and its tokenizer: embeddings, the arguments of `forward`, what the logits are called."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from backplay.entry import without_gradients
from backplay.errors import BackplayError, InputError, InputTypeError, first_line
from backplay.network import Network, read_model
from backplay.network.precision import HALF, in_single, precision_of
from backplay.network.running import EXPORTING, evaluation, logits_of
from backplay.text.tokens import Tokens, check_tokenizer


class Reader:
    """A model that reads embeddings of tokens (`inputs_embeds`), and the tokenizer that it was trained with."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        check_tokenizer(tokenizer)
        read = read_model(model, "an explanation of text")
        self.model: nn.Module = read.model if isinstance(read, Network) else read
        self.tokenizer = tokenizer
        self.takes = _parameters(self.model)
        self.embedding = _embedding(self.model, self.takes)
        self.half = precision_of(self.model.parameters(), torch.float32) in HALF
        self.config: Any = getattr(self.model, "config", None)

    # ---------------------------------------------------------------- running the model

    def embed(self, ids: Tensor, decoder: bool = False) -> Tensor:
        """(B, T, D) what the model knows of its tokens before it reads them together; the decoder's where asked."""
        module = self.embedding
        if decoder:
            module = _embedding(self.model.get_decoder(), frozenset({"inputs_embeds"}))  # type: ignore[operator]
        with without_gradients(), EXPORTING:
            return module(ids.to(self.device)).detach().clone()

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def run(self, arguments: Mapping[str, Any]) -> Tensor:
        """The model's own logits, in eval mode."""
        with self.reading():
            return logits_of(self.model(**arguments))

    @contextmanager
    def reading(self) -> Generator[None]:
        """While the model runs: in eval mode, without gradients; what it raises comes out in one line."""
        with without_gradients(), EXPORTING, evaluation(self.model), _hushed():
            try:
                with in_single(self.half):
                    yield
            except BackplayError:
                raise
            except Exception as error:
                if "padding token" in str(error):
                    raise InputError(
                        "this classifier looks for padding in every batch and knows no padding token: set "
                        "model.config.pad_token_id, to tokenizer.eos_token_id for instance."
                    ) from error
                raise InputError(f"{type(self.model).__name__} cannot read the text: {first_line(error)}") from error

    def answer(self, tokens: Tokens) -> Tensor:
        """(classes,) or (T, classes): what the model says to a text that stands alone, given as token ids."""
        alone = self.arguments([tokens])
        if "input_ids" in self.takes:
            del alone["inputs_embeds"]
            alone = {"input_ids": torch.tensor([tokens.ids], device=self.device), **alone}
        logits = self.run(alone)
        if logits.ndim not in (2, 3) or (logits.ndim == 3 and logits.shape[1] != len(tokens)):
            raise InputError(
                f"the model answers with a tensor of shape {tuple(logits.shape)} to a text of {len(tokens)} tokens; "
                "what can be explained are logits (B, classes) or (B, tokens, classes)."
            )
        return logits[0]

    def arguments(self, texts: Sequence[Tokens], length: int | None = None, left: bool = False) -> dict[str, Tensor]:
        """The texts as keywords of `forward`, padded to a length; on the left with positions that count from the text.

        Padding is hidden by the attention mask; whatever embedding stands there does not matter.
        """
        wide = max(map(len, texts)) if length is None else length

        def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
            lines = [
                [*[fill] * (wide - len(row)), *row] if left else [*row, *[fill] * (wide - len(row))] for row in rows
            ]
            return torch.tensor(lines, device=self.device)

        found = {"inputs_embeds": self.embed(padded([t.ids for t in texts], self.filler))}
        mask = padded([[1] * len(t) for t in texts], 0)
        if "attention_mask" in self.takes:
            found["attention_mask"] = mask
        if left and "position_ids" in self.takes:
            found["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        for name in texts[0].extra:
            if name in self.takes:
                found[name] = padded([t.extra[name] for t in texts], 0)
        return found

    @property
    def filler(self) -> int:
        """The id that stands in padding; a tokenizer without one gets its end token, or token 0: nobody looks there."""
        for name in ("pad_token_id", "eos_token_id"):
            found = getattr(self.tokenizer, name, None)
            if isinstance(found, int):
                return found
        return 0

    # ---------------------------------------------------------------- names and limits

    @property
    def labels(self) -> dict[str, int]:
        """The names of the classes, as the model's configuration or the model itself has them."""
        names: Any = getattr(self.config, "id2label", None)
        if isinstance(names, Mapping):
            return {str(name): int(k) for k, name in names.items()}  # pyright: ignore[reportUnknownArgumentType]
        classes: Any = getattr(self.model, "classes", ())
        return {str(name): k for k, name in enumerate(classes)}

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has embeddings of."""
        weight = getattr(self.embedding, "weight", None)
        return weight.shape[0] if isinstance(weight, Tensor) else 0

    @property
    def longest(self) -> int | None:
        """How many tokens the model has positions for; None where there is no bound."""
        found: Any = getattr(self.config, "max_position_embeddings", None)
        for path, module in self.model.named_modules():
            if isinstance(module, nn.Embedding) and path.rpartition(".")[2] == "position_embeddings":
                # RoBERTa and its like count from behind the padding's row
                found = module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
                break
        return found if isinstance(found, int) and found > 0 else None

    def check_length(self, tokens: Tokens) -> None:
        """Refuse a text that the model has no positions for."""
        longest = self.longest
        if longest is not None and len(tokens) > longest:
            raise InputError(
                f"the text {tokens.text[:40]!r}… has {len(tokens)} tokens, and the model has positions for {longest}; "
                "give a shorter text or cut it into parts."
            )


def _parameters(model: nn.Module) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return frozenset()


def _embedding(model: nn.Module, takes: frozenset[str]) -> nn.Module:
    """The module that turns token ids into what `inputs_embeds` takes."""
    getter: Any = getattr(model, "get_input_embeddings", None)
    if "inputs_embeds" not in takes or not callable(getter):
        lacks = "forward takes no inputs_embeds" if "inputs_embeds" not in takes else "there is no get_input_embeddings"
        raise InputTypeError(
            f"{type(model).__name__} cannot be explained on tokens: {lacks}. A text model has both, as those of "
            "transformers do."
        )
    found: Any = getter()
    if not isinstance(found, nn.Module):
        raise InputTypeError(f"get_input_embeddings of {type(model).__name__} gives {type(found).__name__}, no module.")
    return found


@contextmanager
def _hushed() -> Generator[None]:
    """transformers warns of padding that classifiers do not see; what they say is compared here, and left out if so."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
