"""From the results of the releases to ``docs/en/releases.md``. Pure; standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tests.lab.releases import in_range

Entry = dict[str, Any]

COLUMNS = (
    *("SGLang", "transformers", "processor class", "seams", "native M-RoPE", "grids"),
    *("stock", "patched", "videos", "server", "sources"),
)
_RIGHT = ("exact", "refused")
KINDS = {"qwen3_vl": "Qwen3-VL", "qwen2_5_vl": "Qwen2.5-VL"}

# The second paragraph of the page is one of these.
CURRENT = "All lines were made with the package as it is here."
OLDER = "**Older results.** The package has changed since"
ALL_OLDER = f"{OLDER} the lines below were made; `make matrix` makes them anew."
SOME_OLDER = f"{OLDER} {{count}} of {{all}} lines were made ({{which}}); `make matrix` makes them anew."

HEAD = """\
# Release by release

This page has a line for each SGLang release on PyPI from 0.5.3 on: what is right in stock, and what with the
patch, on Python 3.11 and a CPU. `make matrix` writes the page; do not edit it. `make matrix RELEASE=0.5.9`
runs one release and rewrites its line.

{age}

- **transformers**: the version that the release pins, and that it ran with.
- **seams**: how many functions of the release each repair takes hold of; all are in the shape that it needs.
  They are those that [the table of seams](seams.md) has for this release.
- **native M-RoPE**: whether the release itself rotates an interleaved config as `transformers` does. *No,
  repaired*: with the patch it does. *YaRN repaired*: a YaRN rope loses its `mrope_section` without a
  word; with the patch it keeps them. (*YaRN refused*, in older lines: such a
  model did not start.) This is the rope that Qwen3-VL uses; what
  [mrope.md](mrope.md) says of Qwen3.5 on CUDA is tested elsewhere.
- **grids**: how many of {grids} Qwen3-VL images of random sizes, in text prompts, get a grid in stock that is
  not that of `transformers`. *Repaired*: with the patch there are none.
- **stock**, **patched**: how many requests to the release's own processor class are right, of {cases} for
  each of Qwen3-VL and Qwen2.5-VL: ids, image offsets, M-RoPE positions and padded ids are those that
  `transformers` makes of the caller's own ids, or, where the request cannot be served, it is refused with a
  `ValueError` (HTTP 400). Stock as it comes; patched in every way in which that processor can work
  (`SGLANG_MM_AVOID_RETOKENIZE` on and off, one worker and a pool of them).
- **videos**: of {videos} patched requests with videos for each of the two models, how many are exact (as
  above, times included), and how many are refused because this release cannot place the frames in time.
- **server**: a patched server of a tiny Qwen3-VL started, and the log-probs of three requests were those of
  `transformers` on the caller's ids; -: not tried.
- **sources**: digest of the package, without its command line, that the line was made with.

"""

STOCK_HEAD = """\
## What stock serves right

Each case, and the releases on which stock SGLang gets it right by itself.

| case | Qwen3-VL | Qwen2.5-VL |
|---|---|---|
"""


def document(entries: Sequence[Entry]) -> str:
    """The whole page; one entry for each release, in order. `dated` corrects what it says about its age."""
    lines = [
        _head(next(entry for entry in entries if not failures(entry))),
        "|---" * len(COLUMNS) + "|",
        *(row(entry) for entry in entries),
        "",
        STOCK_HEAD + "\n".join(_stock_rows(entries)),
        "",
    ]
    return "\n".join(lines)


def _head(entry: Entry) -> str:
    """All above the lines of the releases, in the words of one that came to an end."""
    head = HEAD.format(
        age=CURRENT,
        grids=entry["probe"]["stock"]["grid_images"],
        cases=len(entry["probe"]["stock"]["faults"]["qwen3_vl"]),
        videos=len(entry["probe"]["videos"]["qwen3_vl"]),
    )
    return f"{head}| {' | '.join(COLUMNS)} |"


def updated(text: str, entry: Entry, earlier: Sequence[str]) -> str:
    """The page with one line rewritten, or put in behind the last one of the ``earlier`` releases."""
    lines = text.splitlines()
    places = {cells[0]: i for i, line in enumerate(lines) if (cells := _cells_of(line))}
    if entry["release"] in places:
        lines[places[entry["release"]]] = row(entry)
    else:
        lines.insert(max(places[name] for name in earlier if name in places) + 1, row(entry))
    if not failures(entry):
        rules = next(i for i, line in enumerate(lines) if line.startswith("|---"))
        lines[:rules] = _head(entry).splitlines()
    return "\n".join([*lines, ""])


def older(text: str, sources: str) -> list[str]:
    """The releases whose lines were made with another package than that of the digest ``sources``."""
    return [cells[0] for cells in releases(text) if cells[-1] != f"`{sources}`"]


def dated(text: str, sources: str) -> str:
    """The page with a word on its age: whether its lines were made with the package of that digest."""
    stale, lines = older(text, sources), text.splitlines()
    names = [cells[0] for cells in releases(text)]
    if not stale:
        age = CURRENT
    elif stale == names:
        age = ALL_OLDER
    else:
        which = _ranges(names, [name in stale for name in names])
        age = SOME_OLDER.format(count=len(stale), all=len(names), which=which)
    (place,) = (i for i, line in enumerate(lines) if line.startswith((CURRENT, OLDER)))
    lines[place] = age
    return "\n".join([*lines, ""])


def releases(text: str) -> list[list[str]]:
    """The cells of the lines of the releases, in order."""
    return [cells for line in text.splitlines() if (cells := _cells_of(line))]


def row(entry: Entry) -> str:
    return f"| {' | '.join(_cells(entry))} |"


def _cells_of(line: str) -> list[str] | None:
    """The cells of a line that is about a release."""
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return cells if len(cells) == len(COLUMNS) and cells[0][0].isdigit() else None


def summary(entry: Entry) -> str:
    """One line for the screen."""
    _, transformers, cls, _, rope, grids, stock, patched, videos, server, _ = _cells(entry)
    return (
        f"{cls}, transformers {transformers}, M-RoPE {rope}, grids {grids}, stock {stock}, "
        f"patched {patched}, videos {videos}, server {server}; {entry['seconds']} s"
    )


def failures(entry: Entry) -> list[str]:
    """Children that did not come to an end."""
    parts = {part: entry[part] for part in ("probe", "server")} | entry.get("elsewhere", {})
    return [
        f"{entry['release']}, {part}: {' | '.join(answer['error'].split(chr(10))[-6:])}"
        for part, answer in parts.items()
        if isinstance(answer, dict) and "error" in answer
    ]


def faults(entry: Entry) -> list[str]:
    """All that is not as it must be with the patch, and what kept us from looking."""
    faults = failures(entry)
    if faults:
        return faults
    release, patched = entry["release"], entry["probe"]["patched"]
    faults += [
        f"{release}, {KINDS[kind]}, {name}: {fault}"
        for kind, by_name in patched["faults"].items()
        for name, fault in by_name.items()
        if fault
    ]
    faults += [
        f"{release}, {KINDS[kind]}, video, {name}: {outcome}"
        for kind, by_name in entry["probe"]["videos"].items()
        for name, outcome in by_name.items()
        if outcome not in _RIGHT
    ]
    for seam in entry["probe"]["seams"]:
        faults += [f"{release}: {seam['repair']}: {seam['name']}: {fault}" for fault in _seam(seam, release)]
    if patched["grids"]:
        faults.append(f"{release}: {patched['grids']} images with another grid than transformers'")
    if not patched["rope"]["right"]:
        faults.append(f"{release}: the interleaved rope is off by {patched['rope']['error']}")
    if patched["rope"]["yarn"] != "kept":
        faults.append(f"{release}: a YaRN rope with sections is {patched['rope']['yarn']}")
    faults += [
        f"{release}: {repair}: {state}"
        for repair, state in entry["probe"]["status"].items()
        if "failed" in state
    ]
    servers = {"server": entry["server"]} | entry.get("elsewhere", {})
    return faults + [f"{release}, {place}: {fault}" for place, fault in servers.items() if fault]


def _seam(seam: dict[str, Any], release: str) -> Iterator[str]:
    """What is wrong with a row of the table of seams on a release."""
    expected = release in in_range(seam["releases"])
    usable = bool(seam["source"]["usable"])
    if usable != expected:
        is_there = "it is there" if usable else "it is not there, or in another shape"
        yield f"the table says {seam['releases']}, and {is_there}"
    if expected:
        yield from seam["source"]["problems"]
    if seam["imported"] not in (None, seam["source"]):
        yield f"doctor sees {seam['source']} in the source, and the hooks {seam['imported']}"


def _cells(entry: Entry) -> list[str]:
    if failures(entry):
        return [entry["release"], entry["transformers"], *["failed"] * 8, f"`{entry['sources']}`"]
    probe = entry["probe"]
    stock, patched = probe["stock"], probe["patched"]
    elsewhere = entry.get("elsewhere", {}).items()
    return [
        entry["release"],
        entry["transformers"],
        f"`{probe['class']}`",
        _seams(probe["seams"]),
        _rope(stock["rope"], patched["rope"]),
        _grids(stock["grids"], patched["grids"]),
        *(_count(state["faults"]) for state in (stock, patched)),
        "; ".join(f"{KINDS[kind]}: {_outcomes(by_name)}" for kind, by_name in probe["videos"].items()),
        "; ".join([_served(entry["server"]), *(f"{p}: {_served(f)}" for p, f in elsewhere)]),
        f"`{entry['sources']}`",
    ]


def _seams(seams: Sequence[dict[str, Any]]) -> str:
    """``processor 22, mrope 5, video 1``: the functions that each repair takes hold of."""
    counts: Counter[str] = Counter()
    for seam in seams:
        counts[seam["repair"]] += seam["source"]["usable"]
    return ", ".join(f"{repair} {count}" for repair, count in counts.items())


def _rope(stock: dict[str, Any], patched: dict[str, Any]) -> str:
    words = "yes" if stock["right"] else "no, repaired" if patched["right"] else "NO"
    if stock["yarn"] != "lost":
        return words
    return f"{words}; YaRN repaired" if patched["yarn"] == "kept" else f"{words}; YaRN LOST"


def _grids(stock: int, patched: int) -> str:
    if not stock:
        return "right" if not patched else f"{patched} WRONG"
    return f"{stock} differ, {'repaired' if not patched else f'{patched} STILL'}"


def _served(fault: str | None) -> str:
    return "-" if fault is None else "no" if fault else "yes"


def _outcomes(by_name: dict[str, str]) -> str:
    """``3 exact, 1 refused``; what is neither is counted as wrong."""
    counts = Counter(o if o in _RIGHT else "WRONG" for o in by_name.values())
    return ", ".join(f"{counts[word]} {word}" for word in (*_RIGHT, "WRONG") if counts[word])


def _count(by_kind: dict[str, dict[str, str]]) -> str:
    outcomes = [fault for by_name in by_kind.values() for fault in by_name.values()]
    return f"{outcomes.count('')} of {len(outcomes)}"


def _stock_rows(entries: Sequence[Entry]) -> Iterator[str]:
    whole = [entry for entry in entries if not failures(entry)]
    for name in whole[0]["probe"]["stock"]["faults"]["qwen3_vl"]:
        cells = []
        for kind in KINDS:
            right = [not entry["probe"]["stock"]["faults"][kind][name] for entry in whole]
            cells.append(_ranges([entry["release"] for entry in whole], right))
        yield f"| {name} | {' | '.join(cells)} |"


def _ranges(names: Sequence[str], chosen: Sequence[bool]) -> str:
    """``0.5.3 - 0.5.9, 0.5.11``: neighbours together."""
    if all(chosen):
        return "all"
    ranges: list[list[str]] = []
    open_range = False
    for name, wanted in zip(names, chosen, strict=True):
        if wanted and open_range:
            ranges[-1][1:] = [name]
        elif wanted:
            ranges.append([name])
        open_range = wanted
    return ", ".join(" - ".join(pair) for pair in ranges) or "none"
