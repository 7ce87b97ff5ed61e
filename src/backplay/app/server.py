"""The server: this machine alone, a folder for uploads that goes with it, and headers that keep the page to itself."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from backplay.app.uploads import MEGABYTES, Uploads
from backplay.errors import FileError, MissingLibraryError

if TYPE_CHECKING:
    from backplay.app.library import Library

HOST = "127.0.0.1"
PORT = 7860
# a browser loads nothing from elsewhere and sends nothing there, whatever a page may ask it to
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
# what Gradio and the hub's client look at when they are imported
_SILENT = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


class OwnPage:
    """ASGI middleware: requests must name this machine, and every answer carries the policy."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if not all(host.rpartition(":")[0] in (HOST, "localhost") for host in hosts):  # a foreign name for this machine
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"This server answers to this machine alone."})
            return

        async def sealed(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [(b"content-security-policy", POLICY.encode()), (b"referrer-policy", b"no-referrer")]
                message = message | {"headers": [*message.get("headers", ()), *kept]}
            await send(message)

        await self.app(scope, receive, sealed)


def imported() -> ModuleType:
    """Gradio, told to be silent before it is imported."""
    os.environ.update(_SILENT)
    try:
        import gradio
    except ImportError as error:
        raise MissingLibraryError("the explorer needs Gradio: pip install 'backplay[app]'.") from error
    return gradio


def serve(names: Sequence[str], port: int = PORT, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve the page until it is interrupted; `started` is told its address once it answers."""
    with ExitStack() as until_the_end:
        door = until_the_end.enter_context(_door(port))
        folder = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="backplay-app-")))
        os.environ["GRADIO_TEMP_DIR"] = str(folder / "arriving")
        imported()
        import uvicorn

        from backplay.app.library import Library

        warnings.simplefilter("ignore")  # what a game warns of, the page says
        library = Library(names)
        for name in library.names:
            library.find(name)  # a wrong name is told now

        warming, failed = threading.Thread(target=library.warm, daemon=True), list[BaseException]()
        until_the_end.callback(_ended, library, warming)

        class Announced(uvicorn.Server):
            """A server that says when it listens."""

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                try:
                    started(f"http://{HOST}:{door.getsockname()[1]}")
                    warming.start()
                except BaseException as error:  # raised once the server has ended in good order
                    failed.append(error)
                    self.should_exit = True

        # whoever ends the process by a signal has its folder removed too
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        application = OwnPage(_application(library, folder))
        settings = uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=1)
        Announced(settings).run([door])
        for error in failed:
            raise error


def _ended(library: Library, warming: threading.Thread) -> None:
    """Wait for a capture that is under way; leave at once what the page still computes for nobody.

    Python's own end would tear such threads out of torch, which aborts the process with a message.
    """
    library.closed = True
    if warming.ident is not None:
        warming.join()
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    if any(thread.daemon for thread in others):
        atexit.register(os._exit, 0)


def _application(library: Library, folder: Path) -> Any:
    """The page as an ASGI application, with everything off that would reach beyond it."""
    import fastapi
    import gradio

    from backplay.app.page import Page
    from backplay.app.panel import STYLE
    from backplay.app.theme import theme

    page = Page(library, Uploads(folder / "uploads", folder / "arriving"))
    page.blocks.queue(default_concurrency_limit=None, api_open=False)
    # as Gradio's own `launch` sets it: only then does Gradio refuse requests that name files nobody uploaded
    page.blocks.has_launched = True
    return gradio.mount_gradio_app(
        fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        page.blocks,
        "/",
        server_name=HOST,
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        show_error=False,
        max_file_size=MEGABYTES * 2**20,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=theme(),
        css=STYLE,
    )


def _door(port: int) -> socket.socket:
    """A socket at the port, any that is free where 0 is asked for; refused where somebody else listens."""
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((HOST, port))
    except OSError as error:
        door.close()
        told = f"port {port} cannot be used ({error.strerror}); give another one, --port 0 for any that is free."
        raise FileError(told) from None
    return door
