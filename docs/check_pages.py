"""Built pages ask for nothing from elsewhere, and every link inside them leads somewhere.

    python docs/check_pages.py out/docs

Links to other sites are links: nothing is fetched before somebody follows one. Scripts, styles, pictures and fonts of
other hosts are faults, and so are links to files or anchors that are not there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# what a browser fetches by itself, by element; `link` by its relation
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
_CSS = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])([^"')]+)""")


class Page(HTMLParser):
    """The anchors of a page, what it fetches and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self._style = tag == "style"
        self.fetched += _CSS.findall(given.get("style", ""))
        if tag in FETCHED and FETCHED[tag] in given:
            self.fetched.append(given[FETCHED[tag]])
        if tag == "img":
            self.fetched += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        if tag == "link" and RELATIONS & set(given.get("rel", "").split()):
            self.fetched.append(given.get("href", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])

    def handle_data(self, data: str) -> None:
        if self._style:
            self.fetched += _CSS.findall(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "style":
            self._style = False


def is_elsewhere(address: str) -> bool:
    """Whether an address leads to another host."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data", "mailto")


def faults(folder: Path) -> Iterator[str]:
    """A line for each fault in the pages and style sheets of a folder."""
    folder = folder.resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    if not pages:
        yield f"{folder} holds no pages"
    for path, page in pages.items():
        name = path.relative_to(folder)
        for address in page.fetched:
            if is_elsewhere(address):
                yield f"{name} asks for {address}"
            elif not address.startswith("data:") and not _target(path, address).is_file():
                yield f"{name} shows {address}, which is not there"
        for address in dict.fromkeys(page.links):
            if not is_elsewhere(address) and not address.startswith("mailto:"):
                yield from _broken(name, path, address, pages)
    for path in sorted(folder.rglob("*.css")):
        for address in _CSS.findall(path.read_text(encoding="utf-8")):
            if is_elsewhere(address):
                yield f"{path.relative_to(folder)} asks for {address}"


def _target(path: Path, address: str) -> Path:
    return (path.parent / unquote(urlsplit(address).path)).resolve()


def _broken(name: Path, path: Path, address: str, pages: dict[Path, Page]) -> Iterator[str]:
    parts = urlsplit(address)
    target = _target(path, address) if parts.path else path
    if target not in pages and not target.is_file():
        yield f"{name} links to {address}, which is not there"
        return
    known = pages.get(target)
    if parts.fragment and known is not None and unquote(parts.fragment) not in known.anchors:
        yield f"{name} links to {address}: no such anchor"


def main(folder: str = "out/docs") -> int:
    found = list(faults(Path(folder)))
    for fault in found:
        print(fault)
    count = len(list(Path(folder).rglob("*.html")))
    print(f"{count} pages in {folder}: {f'{len(found)} faults' if found else 'all links hold, nothing is asked for'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
