"""The server around the page: whom it answers, and how it says no."""

import asyncio
import socket
import subprocess
import sys

import pytest

import backplay as bp
from backplay.app.server import HOST, OwnPage, _door


async def inner(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
    await send({"type": "http.response.body", "body": b"the page"})


def answer(host):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(OwnPage(inner)({"type": "http", "headers": [(b"host", host)]}, None, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


@pytest.mark.parametrize("host", [b"127.0.0.1:7860", b"localhost:7860"])
def test_this_machine_is_answered(host):
    status, headers, body = answer(host)
    policy = headers[b"content-security-policy"].decode()
    assert status == 200 and body == b"the page" and "http" not in policy
    assert "default-src 'self'" in policy and "connect-src 'self' data: blob:;" in policy


@pytest.mark.parametrize("host", [b"evil.example:7860", b"127.0.0.1.evil.example:7860", b"evil.example"])
def test_foreign_names_of_this_machine_are_not(host):
    """A page elsewhere may have its own name lead here; the browser would let it read the answers."""
    status, _, body = answer(host)
    assert status == 403 and b"the page" not in body


def test_ports():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(bp.BackplayError, match=f"port {port} cannot be used"):
            _door(port)
    with _door(0) as door:
        assert door.getsockname()[0] == HOST and door.getsockname()[1] > 1023


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_gradio_is_imported_by_the_explorer_alone():
    done = run("-c", "import sys, backplay, backplay.cli, backplay.view; print('gradio' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


@pytest.mark.slow
def test_a_wrong_name_on_the_command_line():
    done = run("-m", "backplay", "app", "--port", "0", "--model", "zoo:vgt")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "zoo:vgt is not bundled (did you mean" in done.stderr
