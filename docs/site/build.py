"""``.lab/docs/bin/python docs/site/build.py``: the site in ``.site``, a folder for each language. Offline.

This puts the pages of a language and the pictures into a folder of ``.lab/site``, and adds the navigation.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path

from chrome import translate
from landing import landing
from navigation import LANGUAGES, toctrees
from sphinx.cmd.build import build_main
from tables import break_names

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
DOCS = CHECKOUT / "docs"
STAGE = CHECKOUT / ".lab" / "site"
SITE = CHECKOUT / ".site"
# The digest of what the site was made of, once it is whole.
STAMP = SITE / ".made-of"
# Pages link to reports in docs/upstream. These are no pages of the site: it shows their names.
_REPORT = re.compile(r"\[([^\]]+)\]\(\.\./upstream/[^)]*\)")
SPHINX_LANGUAGES = {"en": "en", "zh": "zh_CN"}


def digest() -> str:
    """Of everything that the site is made of."""
    whole = hashlib.sha256()
    files = [path for path in sorted(DOCS.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    for path in [*files, *sorted(CHECKOUT.glob("README*.md")), Path(sys.prefix).resolve()]:
        whole.update(f"{path}\0".encode())
        if path.is_file():
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def stage(language: str) -> Path:
    """The folder of the pages of one language."""
    folder = STAGE / language
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for source in sorted((DOCS / language).glob("*.md")):
        text = source.read_text(encoding="utf-8").replace("](../images/", "](images/")
        text = _REPORT.sub(r"`\1`", text)
        if source.stem == "index":
            text += toctrees(language)
        (folder / source.name).write_text(text, encoding="utf-8")
    (folder / "images").symlink_to(DOCS / "images")
    return folder


def build(language: str) -> int:
    """Sphinx's exit status; a warning is an error."""
    options = ["-q", "-W", "--keep-going", "-E", "-b", "html", "-c", HERE]
    options += ["-D", f"language={SPHINX_LANGUAGES[language]}"]
    options += ["-d", STAGE / f"{language}-doctrees"]
    return build_main([str(option) for option in (*options, stage(language), SITE / language)])


def main() -> int:
    wanted = digest()
    if STAMP.is_file() and STAMP.read_text() == wanted:
        return 0
    shutil.rmtree(SITE, ignore_errors=True)
    statuses = [build(language) for language in LANGUAGES]  # the problems of both are shown
    if any(statuses):
        return 1
    translate(SITE / "zh")
    break_names(SITE)
    shutil.copytree(DOCS / "images", SITE / "images")
    readmes = {"en": "README.md", "zh": "README.zh-CN.md"}
    texts = {name: (CHECKOUT / readmes[name]).read_text(encoding="utf-8") for name in LANGUAGES}
    (SITE / "index.html").write_text(landing(texts), encoding="utf-8")
    STAMP.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
