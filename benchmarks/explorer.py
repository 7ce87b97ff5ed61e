"""The explorer in a real browser: how long a slider takes to a new picture, and the screenshot of the docs.

    python benchmarks/explorer.py                      # median of 20 moves on every bundled network that sees pictures
    python benchmarks/explorer.py --screenshot docs/images/app.png
    python benchmarks/explorer.py --address http://127.0.0.1:7860     # of a server that runs already

It needs playwright and a chromium: `--browser PATH`, or one that is on the PATH.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MOVES = 20
WAIT = 240_000  # milliseconds: the first picture waits for a capture


@contextmanager
def server(*options):
    """The address of an explorer of its own, by the real entry point."""
    order = [sys.executable, "-m", "backplay", "app", "--port", "0", "--json", *options]
    process = subprocess.Popen(order, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def browser(path=None):
    """A chromium without a window."""
    from playwright.sync_api import sync_playwright

    found = path or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit("no chromium was found; give its path, --browser PATH")
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


def picture(page):
    """The address of the map that is shown: another one for other numbers."""
    return page.locator(".bp-pick img").first.get_attribute("src")


def settle(page):
    """Wait until everything that the page shows belongs to the controls."""
    page.wait_for_selector("#details .bp-card", timeout=WAIT)
    page.wait_for_function("() => !document.querySelector('.bp-working')", timeout=WAIT)


def moves(page, count=MOVES):
    """Seconds from each move of the slider to the next picture, as the browser's own clock has them."""
    slider = page.locator("#a-tau input[type=range]")
    times = []
    for k in range(count):
        settle(page)
        before, value = picture(page), 0.5 + 0.05 * ((7 * k) % 20)
        taken = page.evaluate(
            """async ([before, value]) => {
                const slider = document.querySelector('#a-tau input[type=range]');
                const start = performance.now();
                slider.value = value;
                slider.dispatchEvent(new Event('input', { bubbles: true }));
                slider.dispatchEvent(new Event('pointerup', { bubbles: true }));
                while (document.querySelector('.bp-pick img').src === before) {
                    if (performance.now() - start > 60000) throw new Error('no new picture in a minute');
                    await new Promise((resolve) => setTimeout(resolve, 4));
                }
                return performance.now() - start;
            }""",
            [before, value],
        )
        times.append(taken / 1000)
        page.wait_for_timeout(300)
    assert slider.count() == 1
    return times


def measure(address, opened, names):
    """Prints the median of every network; the bar is a second."""
    for name in names:
        page = opened.new_page()
        page.goto(f"{address}/?model={name}")
        settle(page)
        times = moves(page)
        page.close()
        middle, worst = statistics.median(times), max(times)
        print(f"{name}: slider to picture, median of {len(times)}: {middle:.3f} s, longest {worst:.3f} s", flush=True)


def screenshot(
    address, opened, path, query="?model=zoo:vgg&picture=example:3&tau=0.7&layer=features.7", dark=False, width=1280
):
    """The first tab as a visitor sees it."""
    context = opened.new_context(
        viewport={"width": width, "height": 1000}, color_scheme="dark" if dark else "light", device_scale_factor=1
    )
    page = context.new_page()
    page.goto(address + "/" + query)
    settle(page)
    time.sleep(1)
    page.screenshot(path=path, full_page=True)
    context.close()


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--address", help="of a server that runs already")
    asked.add_argument("--browser", help="path of a chromium")
    asked.add_argument("--screenshot", metavar="FILE", help="write the picture of the docs instead")
    asked.add_argument("--networks", default="zoo:vgg,zoo:resnet,zoo:vit")
    given = asked.parse_args()
    with browser(given.browser) as opened:
        if given.address:
            work(given.address, opened, given)
        else:
            with server() as address:
                work(address, opened, given)


def work(address, opened, given):
    if given.screenshot:
        screenshot(address, opened, given.screenshot)
    else:
        measure(address, opened, given.networks.split(","))


if __name__ == "__main__":
    main()
