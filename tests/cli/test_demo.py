"""`backplay demo`: its numbers, its page, and the page in a real browser."""

import html.parser
import json
import re
import shutil
import socket
import subprocess
import threading

import pytest
import torch

import backplay as bp
from backplay import zoo
from backplay.cli import demo
from backplay.cli.page import Section, Shot, write_page
from commands import run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser here: install Debian's chromium to look at pages"
)


class Outline(html.parser.HTMLParser):
    """Opened tags that are still open, text of headings, images."""

    def __init__(self):
        super().__init__()
        self.open, self.images, self.headings, self.sentences = [], [], [], []

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.images.append(dict(attributes))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if self.open and self.open[-1] == "p":
            self.sentences.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The demo as it is run, once."""
    from backplay.cli import main

    out = tmp_path_factory.mktemp("demo")
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "print_json", printed.append)
        assert main(["demo", "--out", str(out), "--json"]) == 0
    return out, json.loads(json.dumps(printed[0]))


@pytest.mark.slow
def test_demo(report):
    """The networks that are right for a wrong reason are found out; others are not."""
    out, numbers = report
    assert numbers["files"] == [str(out / "report.html")]
    tiles = numbers["tile"]
    assert tiles["tiles"]["share_on_tile"] >= 3 * tiles["objects"]["share_on_tile"]
    assert tiles["objects"]["accuracy"]["wrong tile"] > 0.9 and tiles["tiles"]["accuracy"]["wrong tile"] < 0.1
    assert tiles["objects"]["sound"] and tiles["tiles"]["sound"]
    days = numbers["text"]
    assert days["days"]["strongest_is_day"] > 0.8 > 0.2 > days["opinions"]["strongest_is_day"]
    assert days["opinions"]["wrong_day"] > 0.9 and days["days"]["wrong_day"] < 0.1
    cascade = numbers["distance"]["cascade"]
    assert cascade[0]["rg"] == cascade[0]["sg"] == 0 and cascade[-1]["rg"] > 0.9
    assert all(0 < share < 1 for share in numbers["walks"]["arrives"].values())
    assert {n: len(own) for n, own in numbers["methods"]["share_on_object"].items()} == {
        "vgg": 6,
        "resnet": 6,
        "vit": 6,
    }


@pytest.mark.slow
def test_the_page(report):
    """One file: pictures inside it, two sentences a section, the numbers of the report below."""
    out, numbers = report
    text = (out / "report.html").read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.open == [] and len(outline.headings) == 1 + len(demo.PARTS)
    assert len(outline.images) == 6 + 2 + 3 + 1 + 2 and all(
        i["src"].startswith("data:image/png;base64,") for i in outline.images
    )
    assert all(i["alt"] for i in outline.images) and "://" not in text
    for words in outline.sentences[1:]:
        assert len(re.findall(r"[.!?](?= [A-Z]|$)", words)) == 2, words
    for share in numbers["walks"]["arrives"].values():
        assert f"<td>{share:.3%}</td>" in text
    for one in numbers["distance"]["cascade"]:
        assert f"<td>{one['rg']:.3f}</td>" in text
    assert f"<td>{numbers['tile']['tiles']['share_on_tile']:.1%}</td>" in text


# ---------------------------------------------------------------- in a browser


def browse(page, folder, *options, size="390,800"):
    """Chromium on a page, all its requests sent to a proxy of ours: what it printed, and how many there were."""
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.2)
        over = threading.Event()

        def listen():
            while not over.is_set():
                try:
                    line, _ = proxy.accept()
                except TimeoutError:
                    continue
                with line:
                    line.settimeout(2)
                    seen.append(line.recv(200).decode(errors="replace").split("\r\n")[0])

        listener = threading.Thread(target=listen)
        listener.start()
        quiet = (
            "--disable-background-networking --disable-component-update --disable-sync --disable-quic --no-first-run"
        )
        command = [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet.split(), "--hide-scrollbars"),
            *(f"--user-data-dir={folder / 'profile'}", f"--proxy-server=127.0.0.1:{proxy.getsockname()[1]}"),
            *("--proxy-bypass-list=<-loopback>", f"--window-size={size}", *options, page.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        over.set()
        listener.join()
    assert done.returncode == 0, done.stderr
    asked = [line for line in seen if "example" in line]
    return done.stdout, asked


@needs_browser
def test_nothing_leaves_the_page(tmp_path):
    """A picture from elsewhere, smuggled in, is not asked for; on a page without our rule it is."""
    shot = Shot("a", html='<img src="http://example.invalid/a.png"><script>document.title="ran"</script>')
    page = write_page("title", "lead", [Section("one", [shot], "words")])
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "open.html").write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page))
    shown, asked = browse(tmp_path / "page.html", tmp_path, "--dump-dom")
    assert asked == [] and "<title>title</title>" in shown, "nothing runs either"
    shown, asked = browse(tmp_path / "open.html", tmp_path, "--dump-dom")
    assert asked and "<title>ran</title>" in shown, "the check can fail"


MEASURE = """<script>
const wide = [...document.images].map(i => [i.naturalWidth > 0 && i.complete, i.clientWidth]);
document.body.setAttribute("data-found", JSON.stringify({wide, page: document.documentElement.scrollWidth,
  window: document.documentElement.clientWidth, letters: parseFloat(getComputedStyle(document.body).fontSize)}));
</script>"""


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("size", ["500,900", "1280,900"])
def test_the_page_in_a_browser(report, tmp_path, size):
    """Every picture is decoded and fits; the page does not scroll sideways; nothing is asked for."""
    text = (report[0] / "report.html").read_text()
    measured = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace(
        "</body>", f"{MEASURE}</body>"
    )
    (tmp_path / "page.html").write_text(measured)
    shown, asked = browse(tmp_path / "page.html", tmp_path, "--dump-dom", "--virtual-time-budget=5000", size=size)
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', shown)[1]))
    assert asked == [] and len(found["wide"]) == 14
    assert all(decoded and 250 <= wide <= found["window"] for decoded, wide in found["wide"]), found
    assert found["page"] <= found["window"] and found["letters"] >= 16, found


# ---------------------------------------------------------------- parts


def test_share_on():
    heat = torch.zeros(1, 2, 2, 2)
    heat[0, :, 0, 0], heat[0, 0, 1, 1] = -1.0, 2.0  # −2 and 2 once colours are summed
    mask = torch.zeros(1, 2, 2, dtype=torch.bool)
    mask[0, 0, 0] = True
    assert demo.share_on(heat, mask) == 0.5


def test_six_methods_that_fit():
    batch = zoo.images(1)
    for name, chosen in demo.METHODS.items():
        network = bp.capture(zoo.load(name), batch.x)
        assert len(set(chosen)) == 6 and all(bp.methods()[m].fits(network) for m in chosen)


def test_text_on_a_page_is_escaped():
    page = write_page("<b>", "a & b", [Section("<i>", [Shot("x<y", b"png")], "1 < 2", [["<h>"], ["<c>"]])])
    outline = Outline()
    outline.feed(page)
    assert outline.open == [] and outline.headings == ["<b>", "<i>"] and outline.images[0]["alt"] == "x<y"


def test_bad_input(capsys, tmp_path):
    (tmp_path / "taken").touch()
    code, _, err = run(capsys, "demo", "--out", tmp_path / "taken")
    assert code == 1 and err.count("\n") == 1 and "cannot make the folder" in err
