"""``python -m tests.docs.install``: write into the pages how the package is installed.

`deepeyes_patch.cli.project.ON_AN_INDEX` decides. Until the first release no package index has the package,
and a reader installs a checkout. ``test_install.py`` compares the pages with this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepeyes_patch.cli import project
from tests.docs.pages import CHECKOUT


@dataclass(frozen=True)
class Text:
    """A place in a page: what stands there for a checkout, and what for an index."""

    page: str
    checkout: str
    index: str


TEXTS = (
    Text(
        "README.md",
        "    pip install ./deepeyes-patch      # the folder of a checkout; no package index has it yet\n",
        "    pip install deepeyes-patch\n",
    ),
    Text(
        "README.zh-CN.md",
        "    pip install ./deepeyes-patch      # 源码目录；尚未发布到任何包索引\n",
        "    pip install deepeyes-patch\n",
    ),
    *(
        text
        for language in ("en", "zh")
        for text in (
            Text(
                f"docs/{language}/quickstart.md",
                "```sh\npip install ./deepeyes-patch\n```\n",
                "```sh\npip install deepeyes-patch\n```\n",
            ),
            Text(
                f"docs/{language}/quickstart.md",
                "COPY . /opt/deepeyes-patch\nRUN pip install --no-cache-dir /opt/deepeyes-patch\n",
                "RUN pip install --no-cache-dir deepeyes-patch\n",
            ),
            Text(
                f"docs/{language}/quickstart.md",
                "docker build -t sglang-deepeyes -f deepeyes-patch/docker/Dockerfile deepeyes-patch\n",
                "docker build -t sglang-deepeyes .\n",
            ),
            Text(
                f"docs/{language}/security.md",
                "pip wheel -q --no-deps --wheel-dir wheel ./deepeyes-patch\n",
                "pip download --no-deps --only-binary :all: --dest wheel deepeyes-patch\n",
            ),
            *(
                Text(
                    f"docs/{language}/troubleshooting.md",
                    f"`pip install --force-reinstall {options}./deepeyes-patch`",
                    f"`pip install --force-reinstall {options}deepeyes-patch`",
                )
                for options in ("", "--no-deps ")
            ),
            Text(
                f"docs/{language}/upgrading.md",
                "`pip install --upgrade ./deepeyes-patch`",
                "`pip install --upgrade deepeyes-patch`",
            ),
        )
    ),
    Text(
        "docs/en/quickstart.md",
        "`deepeyes-patch` is the folder of a checkout; no package index has the package yet. pip also",
        "(From a checkout: `pip install ./deepeyes-patch`) pip also",
    ),
    Text(
        "docs/zh/quickstart.md",
        "`deepeyes-patch` 是源码目录；本包尚未发布到任何包索引。pip 会",
        "（从源码安装：`pip install ./deepeyes-patch`）pip 会",
    ),
    Text(
        "docs/en/security.md",
        "compare with a wheel that you built yourself from a checkout\nthat you trust, with `SITE` as above:",
        "compare with a wheel that you fetched from the index yourself,\nwith `SITE` as above:",
    ),
    Text(
        "docs/zh/security.md",
        "所以还要与你自己用可信的源码构建的 wheel 比较，",
        "所以还要与你自己从索引下载的 wheel 比较，",
    ),
    Text(
        "docker/Dockerfile",
        "COPY . /opt/deepeyes-patch\nRUN pip install --no-cache-dir /opt/deepeyes-patch\n",
        "RUN pip install --no-cache-dir deepeyes-patch\n",
    ),
)


def rewritten(texts: dict[str, str], on_an_index: bool) -> dict[str, str]:
    """The pages by name, with what belongs there."""
    result = dict(texts)
    for text in TEXTS:
        old, new = (text.checkout, text.index) if on_an_index else (text.index, text.checkout)
        result[text.page] = result[text.page].replace(old, new)
    return result


def pages() -> dict[str, str]:
    return {text.page: (CHECKOUT / text.page).read_text(encoding="utf-8") for text in TEXTS}


def main() -> None:
    for name, text in rewritten(pages(), project.ON_AN_INDEX).items():
        (CHECKOUT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
