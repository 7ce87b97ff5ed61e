"""The explorer as a visitor has it: a real server, by the real entry point, and a real browser."""

import base64
import io
import json
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image

from chromium import browser as chromium

pytestmark = pytest.mark.slow

WAIT = 60_000  # milliseconds, on a machine that is busy with other things
MODELS = textwrap.dedent("""
    import torch
    from torch import nn

    class Bessel(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x).mean((2, 3))

    def odd():
        return Bessel(), {"size": 8}
""")


@pytest.fixture(scope="module")
def program():
    """The path of a browser."""
    return chromium()


@pytest.fixture(scope="module")
def address(program, tmp_path_factory):
    """Of a server with two networks, a text model, and one that cannot be captured."""
    file = tmp_path_factory.mktemp("models") / "mine.py"
    file.write_text(MODELS)
    names = ("zoo:vgg", "zoo:vgg-spurious", "zoo:text", f"{file}:odd")
    order = [sys.executable, "-m", "backplay", "app", "--port", "0", "--json"]
    order += [word for name in names for word in ("--model", name)]
    with subprocess.Popen(order, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def browser(program):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(address, browser):
    """Open an address as a new visitor. Whatever they do, nothing is asked for elsewhere and no script fails."""
    contexts, foreign, failed = [], [], []

    def see(query="", **options):
        context = browser.new_context(viewport={"width": 1280, "height": 1000}, **options)
        context.on("request", lambda request: foreign.append(request.url) if not _own(request.url, address) else None)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: failed.append(str(error)))
        contexts.append(context)
        page.goto(f"{address}/{query}")
        return page

    yield see
    for context in contexts:
        context.close()
    assert foreign == [] and failed == []


def _own(url, address):
    return url.startswith((f"{address}/", "data:", "blob:")) or url == address


def settled(page):
    """Wait until all panels are there."""
    page.wait_for_selector("#details .bp-card")
    page.wait_for_function("() => !document.querySelector('.bp-working')")
    return page


def picture(page):
    return page.locator(".bp-pick img").get_attribute("src")


def changed(page, before):
    """Wait for another map."""
    page.wait_for_function("before => document.querySelector('.bp-pick img').src !== before", arg=before)
    return picture(page)


def move_tau(page, key="ArrowLeft"):
    before = picture(page)
    page.locator("#a-tau input[type=range]").focus()
    page.keyboard.press(key)
    return changed(page, before)


def tabbed_to(page, selector):
    """Reach something by the Tab key alone."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("selector => !!document.activeElement.closest(selector)", selector):
            return
    raise AssertionError(f"the Tab key does not lead to {selector}")


def upload(page, path):
    with page.expect_file_chooser() as chooser:
        page.locator("#a-upload").click()
    chooser.value.set_files(path)


def test_a_visit(visit, tmp_path, monkeypatch):
    """Load, move τ, click a pixel, open a layer, export; and the address brings all of it back."""
    page = settled(visit("?picture=example:3"))
    panels = page.locator("[data-panel]").evaluate_all("all => all.map(one => one.dataset.panel)")
    assert panels == ["map", "health", "players", "walks", "layers"]
    before = picture(page)
    after = move_tau(page)
    assert before != after
    page.wait_for_function("() => location.search.includes('tau=0.95')")
    box = page.locator(".bp-pick img").bounding_box()
    page.mouse.click(box["x"] + 0.505 * box["width"], box["y"] + 0.255 * box["height"])
    page.wait_for_selector("[data-panel=chosen]")
    assert page.locator("[data-panel=chosen] h3").inner_text() == "Walks that end at row 24, column 48"
    page.locator("[data-layer='features.8']").click()
    page.wait_for_selector("[data-panel=channels] figure")

    page.locator("#export").click()
    page.wait_for_selector("#exported .bp-link")
    links = page.locator("#exported a").evaluate_all("all => all.map(one => [one.download, one.href])")
    files = {name: base64.b64decode(href.partition(",")[2]) for name, href in links}
    assert (
        files["map.png"].startswith(b"\x89PNG")
        and files["map.py"].decode().strip() in page.locator("#exported code").inner_text()
    )
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(compile(files["map.py"], "map.py", "exec"), found)
    numbers = np.load(io.BytesIO(files["map.npz"]))
    np.testing.assert_allclose(numbers["map"], found["heat"][0].double().sum(0), rtol=1e-4, atol=1e-7)

    page.wait_for_function("() => location.search.includes('layer=features.8')")
    again = settled(visit(page.url.partition("/?")[2].join(["?", ""])))
    assert picture(again) == after
    assert again.locator("[data-panel=chosen] h3").inner_text() == "Walks that end at row 24, column 48"
    assert again.locator("[data-panel=channels]").count() == 1
    assert again.locator("#a-tau input[type=range]").input_value() == "0.95"


def test_uploads_good_and_bad(visit, tmp_path):
    """A picture of one's own is explained; what is none, or far too large, is one line."""
    page = settled(visit())
    before = picture(page)
    noise = np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "mine.png")
    upload(page, tmp_path / "mine.png")
    after = changed(page, before)
    page.wait_for_function("() => location.search.includes('picture=upload')")

    (tmp_path / "notes.png").write_text("no picture at all")
    upload(page, tmp_path / "notes.png")
    page.wait_for_selector("#note .bp-error")
    assert "notes.png is no picture" in page.locator("#note .bp-error").inner_text()
    page.wait_for_timeout(1500)  # no drawing that follows may take the line away
    assert "notes.png is no picture" in page.locator("#note .bp-error").inner_text()
    Image.new("1", (12000, 9000)).save(tmp_path / "huge.png")
    upload(page, tmp_path / "huge.png")
    page.wait_for_function("() => document.querySelector('#note').innerText.includes('12000 × 9000 pixels')")
    assert "more than 100 megapixels" in page.locator("#note").inner_text()
    assert picture(page) == after and page.locator("#note .bp-error").count() == 1


def test_an_export_stays_beside_bad_uploads(visit, tmp_path):
    """However many come, and however fast: nothing is drawn, and so nothing that is shown is taken away."""
    page = settled(visit())
    page.locator("#export").click()
    page.wait_for_selector("#exported .bp-link")
    for k in range(6):
        (tmp_path / f"notes{k}.png").write_text("no picture at all")
        upload(page, tmp_path / f"notes{k}.png")
        page.wait_for_timeout(100 * (k % 3))
    page.wait_for_function("() => document.querySelector('#note').innerText.includes('notes5.png is no picture')")
    page.wait_for_timeout(1500)
    assert page.locator("#exported .bp-link").count() == 3
    assert not pale(page, "#look .bp-card") and not page.locator("#older").is_visible()


def pale(page, selector):
    return page.locator(selector).first.evaluate("one => getComputedStyle(one).opacity") == "0.45"


def test_what_is_older_than_the_controls_is_pale(visit):
    """An empty number is one line in the page; map and panels are pale until they are drawn again."""
    page = settled(visit())
    before = picture(page)
    page.locator("#a-tau input[type=number]").fill("")
    page.wait_for_selector("#note .bp-error")
    assert page.locator("#note").inner_text().strip() == "Temperature τ is empty; give a number from 0.1 to 3.0."
    page.locator("#older").wait_for()
    assert "before the last change" in page.locator("#older").inner_text()
    page.wait_for_timeout(700)
    assert pale(page, "#look .bp-card") and pale(page, "#details .bp-card") and picture(page) == before
    page.locator("#a-tau input[type=number]").fill("0.6")
    changed(page, before)
    settled(page)
    page.wait_for_function("() => !document.querySelector('#older p')")
    page.wait_for_timeout(300)
    assert not pale(page, "#look .bp-card") and not pale(page, "#details .bp-card")
    assert page.locator("#note .bp-error").count() == 0


def test_modes_by_layer(visit):
    """A slider for layers: what it sets is written below, drawn, and in the address."""
    page = settled(visit("?picture=example:3"))
    before = picture(page)
    page.get_by_text("Modes by layer").first.click()
    page.locator("#a-much input[type=range]").focus()
    page.keyboard.press("ArrowLeft")
    changed(page, before)
    assert page.locator("#a-layers").locator("textarea, input").input_value() == "features: tau=0.95"
    page.wait_for_function("() => location.search.includes('layers=features%3A+tau%3D0.95')")


def test_two_visitors(visit):
    """What one does, the other does not notice."""
    first, second = settled(visit("?picture=example:1")), settled(visit("?picture=example:2"))
    mine = picture(first)
    theirs = move_tau(second)
    settled(second)
    assert picture(first) == mine and "tau" not in first.url
    move_tau(first, "ArrowRight")
    settled(first)
    assert picture(second) == theirs
    assert second.locator("#a-tau input[type=range]").input_value() == "0.95"


def test_keys_alone(visit):
    """Slider, map and layer without a mouse; the focus stays where it was."""
    page = settled(visit())
    before = picture(page)
    tabbed_to(page, "#a-tau input[type=range]")
    page.keyboard.press("ArrowRight")
    changed(page, before)
    settled(page)
    tabbed_to(page, ".bp-pick")
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("[data-panel=chosen]")
    assert page.locator("[data-panel=chosen] h3").inner_text() == "Walks that end at row 46, column 47"
    assert page.evaluate("() => document.activeElement.className") == "bp-pick"
    tabbed_to(page, "[data-layer='head.0']")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-panel=channels]")


def test_a_sentence(visit):
    """A model that reads: choose a token, in the dark and on a narrow screen; what is written is only text."""
    text = "%3Cimg+src=x+onerror=alert(1)%3E+$%7B1%7D+not+great"
    page = settled(visit(f"?model=zoo:text&text={text}", color_scheme="dark"))
    page.set_viewport_size({"width": 420, "height": 900})
    assert page.locator("#look img").count() == 0 and "not" in page.locator("#look").inner_text()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 420
    page.locator(".bp-token", has_text="great").first.click()
    page.wait_for_selector("[data-panel=chosen]")
    assert "“great”" in page.locator("[data-panel=chosen] h3").inner_text()


def test_comparing(visit):
    """Two pictures at first, then two models; both sides of the address."""
    page = visit("?picture=example:3&b.picture=example:3&b.model=zoo:vgg-spurious&tab=compare")
    page.wait_for_selector("#pair [data-panel=distance]")
    assert "tab=compare" in page.url
    told = page.locator("#pair [data-panel=sides]").inner_text()
    assert "A: zoo:vgg, default modes" in told and "B: zoo:vgg-spurious, default modes" in told
    page.locator("#same").click()
    page.wait_for_function("() => document.querySelector('#pair').innerText.includes('0.0000')")
    assert "b.model=zoo%3Avgg&" in page.url
    page.locator("#pair-export").click()
    page.wait_for_selector("#pair-exported .bp-link")
    assert "h = bp.hellinger(a, b)" in page.locator("#pair-exported code").inner_text()


def test_methods(visit):
    """Maps as they come; long work tells how far it is, and can be stopped."""
    early = visit()  # who opens a tab before the address is read stays there
    early.get_by_role("tab", name="Methods").click()
    early.wait_for_selector("#chosen input:checked")
    assert early.locator("#chosen label:has-text('lime')").is_visible() and "tab=methods" in early.url
    page = settled(visit("?m.methods=gradcam"))
    page.get_by_role("tab", name="Methods").click()
    page.wait_for_selector("#rivals figcaption:has-text('gradcam')")
    page.locator("#chosen label:has-text('kernel_shap') input").check()
    page.wait_for_function("() => location.search.includes('kernel_shap')")
    page.locator("#run").click()
    page.wait_for_selector("#rivals .bp-coming")
    page.wait_for_selector("#rivals figcaption:has-text('gradcam')")
    page.locator("#rival-note .bp-stop").click()
    page.wait_for_selector("#rival-note p:has-text('Stopped.')")
    assert page.locator("#rivals .bp-coming").count() == 1


def test_methods_come_back(visit):
    """The address opens the tab with its methods and their maps; a change in Explore makes these pale until Run."""
    page = visit("?picture=example:3&tab=methods&m.methods=gradcam,rg")
    page.wait_for_selector("#rivals figcaption:has-text('gradcam')")
    page.wait_for_selector("#rivals figcaption:has-text('rg')")
    page.wait_for_selector("#chosen label:has-text('lime')")
    assert page.locator("#chosen input:checked").count() == 2
    assert "tab=methods" in page.url and "m.methods=gradcam" in page.url
    page.get_by_role("tab", name="Explore").click()
    settled(page)
    assert "tab=explore" in page.url
    move_tau(page)
    page.get_by_role("tab", name="Methods").click()
    page.wait_for_selector("#rivals-older:visible")
    assert "press Run" in page.locator("#rivals-older").inner_text()
    page.locator("#run").click()
    page.wait_for_function("() => !document.querySelector('#rivals-older p')")


def test_wrong_models_and_addresses(visit):
    """One clear line, and the page stays usable."""
    page = settled(visit("?model=zoo:vgt&tau=0.5"))
    assert "no model named 'zoo:vgt'" in page.locator("#note .bp-error").inner_text()
    page.locator("#a-model input").click()
    page.get_by_role("option", name="odd").click()
    page.wait_for_function("() => document.querySelector('#note').innerText.includes('bessel')")
    assert page.locator("#note .bp-error").count() == 1
    page.locator("#a-model input").click()
    page.get_by_role("option", name="zoo:vgg-spurious").click()
    page.wait_for_function("() => location.search.includes('vgg-spurious')")
    assert page.locator("#note .bp-error").count() == 0


def answered(url, data=None, **headers):
    """Status and text."""
    content = None if data is None else json.dumps(data).encode()
    given = headers | ({"Content-Type": "application/json"} if data is not None else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, content, given), timeout=60) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "pyproject.toml"]
)
def test_no_file_outside_is_served(address, path):
    status, text = answered(f"{address}/gradio_api/file={path}")
    assert status in (400, 403, 404) and "root:" not in text and "hatchling" not in text


def test_no_file_outside_is_read(address):
    """An upload that names a file of the server's instead of sending one is refused."""
    _, config = answered(f"{address}/config")
    uploads = [d["id"] for d in json.loads(config)["dependencies"] if any(t[1] == "upload" for t in d["targets"])]
    assert uploads
    body = {
        "data": [{"path": "/etc/passwd", "orig_name": "x.png", "meta": {"_type": "gradio.FileData"}}],
        "fn_index": uploads[0],
        "session_hash": "outsider",
    }
    status, _ = answered(f"{address}/gradio_api/queue/join", body)
    if status == 200:
        _, events = answered(f"{address}/gradio_api/queue/data?session_hash=outsider")
        last = [json.loads(line[6:]) for line in events.splitlines() if "process_completed" in line][-1]
        assert not last["success"] and "root:" not in events, events


def test_foreign_names_are_refused(address):
    assert answered(address, Host="evil.example:80")[0] == 403
    assert answered(f"{address}/gradio_api/info")[0] in (200, 403, 404)
