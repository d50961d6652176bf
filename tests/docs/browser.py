"""Pages of the built site in a real browser: what is wider than the box it stands in.

A frame of each width loads one page after the other, and reports to the server that the pages come from.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

SECONDS = 240  # bound on all pages
WIDE = "wide.html"  # a page that is wrong
WIDE_PAGE = f"<body><article><pre>{'x' * 400}</pre><p>{'<code>y</code> ' * 99}</p></article></body>"

HARNESS = """<!doctype html><meta charset="utf-8"><body><script>
const { pages, widths } = PLAN;
function look(frame) {
  const view = frame.contentWindow, page = frame.contentDocument, root = page.documentElement;
  const box = page.querySelector("article") || page.body;
  const slack = 9;  // furo's headings reach half a rem into the margin
  const edge = box.getBoundingClientRect().right + slack;
  const scrolls = (element) => /auto|scroll|hidden/.test(view.getComputedStyle(element).overflowX);
  const within = (element) => {
    for (let outer = element.parentElement; outer && outer !== box; outer = outer.parentElement)
      if (scrolls(outer)) return true;
    return false;
  };
  // An element that is too wide, or whose content runs out of it.
  const wide = (element) =>
    element.getBoundingClientRect().right > edge ||
    (element.clientWidth && !scrolls(element) && element.scrollWidth > element.clientWidth + slack);
  const outside = [...box.querySelectorAll("*")]
    .filter((element) => wide(element) && !within(element))
    .map((element) => `${element.tagName}: ${element.textContent.trim().slice(0, 40)}`);
  if (root.scrollWidth > root.clientWidth) outside.push(`the page: ${root.scrollWidth} px`);
  const tables = [...box.querySelectorAll("table")].map((table) => {
    const outer = table.parentElement, head = table.rows[0].textContent.trim().split(/\\s+/).join(" ");
    return { head, fits: outer.scrollWidth <= outer.clientWidth };
  });
  const buttons = box.querySelectorAll("button.copybtn").length;
  const blocks = box.querySelectorAll("div:not(.highlight-mermaid) > .highlight pre").length;
  // Links that a reader sees without opening anything.
  const shown = (link) => {
    const place = link.getBoundingClientRect();
    return link.contains(page.elementFromPoint(place.x + place.width / 2, place.y + place.height / 2));
  };
  const languages = [...page.querySelectorAll(".languages a")].filter(shown).map((link) => link.textContent);
  return { outside, tables, blocks, buttons, languages };
}
(async () => {
  const found = [];
  for (const width of widths) {
    const frame = document.createElement("iframe");
    frame.style.cssText = `width:${width}px;height:800px;border:0`;
    document.body.append(frame);
    for (const path of pages) {
      await new Promise((loaded) => { frame.onload = loaded; frame.src = path; });
      await frame.contentDocument.fonts.ready;
      found.push({ path, width, ...look(frame) });
    }
    frame.remove();
  }
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
})().catch((error) => fetch("/found", { method: "POST", body: JSON.stringify(String(error)) }));
</script>"""


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, harness: str, answers: queue.Queue[Any], directory: str) -> None:
        self._made = {"/harness": harness, f"/{WIDE}": WIDE_PAGE}
        self._answers = answers
        super().__init__(*args, directory=directory)

    def do_GET(self) -> None:
        if self.path not in self._made:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self._made[self.path].encode())
        return None

    def do_POST(self) -> None:
        self._answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def measure(browser: str, site: Path, pages: Sequence[str], widths: Sequence[int]) -> list[dict[str, Any]]:
    """For each page and width: what stands outside, which tables fit without being scrolled, and so on."""
    plan = json.dumps({"pages": [f"/{page}" for page in pages], "widths": list(widths)})
    answers: queue.Queue[Any] = queue.Queue()
    handler = partial(
        _Handler, harness=HARNESS.replace("PLAN", plan, 1), answers=answers, directory=str(site)
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with _running(browser, f"http://127.0.0.1:{server.server_port}/harness"):
                found = answers.get(timeout=SECONDS)
        finally:
            server.shutdown()
    assert isinstance(found, list), found
    return found


@contextlib.contextmanager
def _running(browser: str, address: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"]
        options += [f"--user-data-dir={profile}", "--window-size=1400,900"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([browser, *options, "--remote-debugging-port=0", address], **quiet)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=20)
