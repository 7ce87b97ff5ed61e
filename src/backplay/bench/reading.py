"""YAML that knows its lines: an error names the key and the line that it stands in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from backplay.errors import BackplayError, MissingLibraryError, instead

T = TypeVar("T")


class ConfigError(BackplayError, ValueError):
    """A config that cannot be run: the message names the file, the line and the key."""


def yaml() -> Any:
    """PyYAML, or how to install it."""
    try:
        import yaml as found
    except ImportError as error:
        raise MissingLibraryError("configs need PyYAML: pip install 'backplay[bench]'") from error
    return found


@dataclass(frozen=True)
class Item:
    """A value of a config, the key that leads to it and its line."""

    node: Any  # of PyYAML
    file: str
    key: str = ""

    def error(self, message: str) -> ConfigError:
        place = f"{self.file}, line {self.node.start_mark.line + 1}"
        return ConfigError(f"{place}: {self.key}: {message}" if self.key else f"{place}: {message}")

    @property
    def kind(self) -> str:
        return {"scalar": "a value", "sequence": "a list", "mapping": "a mapping"}[self.node.id]

    @property
    def plain(self) -> Any:
        """The value as Python has it."""
        y = yaml()
        loader = y.SafeLoader("")
        try:
            return loader.construct_object(self.node, deep=True)
        except y.YAMLError as error:
            raise self.error(str(getattr(error, "problem", error))) from error
        finally:
            loader.dispose()

    def mapping(self, required: Sequence[str] = (), optional: Sequence[str] | None = ()) -> dict[str, Item]:
        """Its keys; `optional=None` lets all of them pass."""
        if self.node.id != "mapping":
            raise self.error(f"expected a mapping, found {self.kind}.")
        found: dict[str, Item] = {}
        for key, value in self.node.value:
            name = str(key.value)
            item = Item(value, self.file, f"{self.key}.{name}" if self.key else name)
            here = Item(key, self.file, item.key)
            if name in found:
                raise here.error("stands here for the second time; give each key once.")
            known = [*required, *(optional or ())]
            if optional is not None and name not in known:
                raise here.error(f"unknown key{instead(name, known, 'known are')}.")
            found[name] = item
        missing = [name for name in required if name not in found]
        if missing:
            raise self.error(f"lacks the key {missing[0]!r}.")
        return found

    def items(self) -> list[Item]:
        if self.node.id != "sequence":
            raise self.error(f"expected a list, found {self.kind}.")
        if not self.node.value:
            raise self.error("the list is empty.")
        return [Item(node, self.file, f"{self.key}[{k}]") for k, node in enumerate(self.node.value)]

    def text(self) -> str:
        found = self.plain
        if not isinstance(found, str) or not found.strip():
            raise self.error(f"expected text, found {found!r}.")
        return found

    def whole(self, least: int) -> int:
        found = self.plain
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise self.error(f"expected a whole number, {least} or more, found {found!r}.")
        return found

    def choice(self, known: Sequence[str]) -> str:
        found = self.plain
        if found not in known:
            raise self.error(f"{found!r} is unknown{instead(found, known, 'give one of')}.")
        return found

    def checked(self, check: Callable[[], T]) -> T:
        """What `check` returns; what it refuses is refused with this line."""
        try:
            return check()
        except ConfigError:
            raise
        except BackplayError as error:
            raise self.error(str(error)) from error


def compose(text: str, file: str, keys: Sequence[str]) -> Item:
    """The top of a config, which must have some keys."""
    y = yaml()
    try:
        node = y.compose(text, Loader=y.SafeLoader)
    except y.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{file}{line}: this is no YAML: {problem}.") from error
    if node is None:
        raise ConfigError(f"{file} is empty; expected the keys {', '.join(keys[:-1])} and {keys[-1]}.")
    return Item(node, file)


def walk(item: Item) -> Iterator[Item]:
    """An item and everything in it."""
    yield item
    if item.node.id == "mapping":
        for inner in item.mapping(optional=None).values():
            yield from walk(inner)
    elif item.node.id == "sequence" and item.node.value:
        for inner in item.items():
            yield from walk(inner)
