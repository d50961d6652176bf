"""Judge what stock and patched SGLang answered to the requests of ``verify``."""

from __future__ import annotations

from typing import Any

ROPE_NOISE = 5e-3  # rounding of float32 rotations of values up to 5, computed in another order
EXACT = "exact"
TEXT = "text"  # the kind of a request that says nothing about ids
PARTS = ("input_ids", "offsets", "grids", "mrope_positions", "mrope_position_delta")

WHY = {
    "input_ids": "the caller's own ids, not those that decoding and tokenizing again gives",
    "offsets": "images lie where the caller's ids have them",
    "grids": "as transformers makes them",
    "mrope_positions": "they follow from the caller's ids",
    "mrope_position_delta": "it follows from the caller's ids",
    "error": "stock cannot serve it",
}


def judge(case: dict[str, Any], stock: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """One row of the table: the results of stock and patched, and whether they are as promised."""
    if case["kind"] == TEXT:
        return _judge_text(case, stock, patched)
    expected = case["expected"]
    changed = _changed(stock, patched)
    if expected is None:
        ok, why = bool(patched.get("refused")), patched.get("error", "it was served")
    else:
        ok = verdict(patched, expected) == EXACT
        why = "; ".join(f"{part}: {WHY[part]}" for part in changed) if ok else _difference(patched, expected)
    return {
        "name": case["name"],
        "kind": case["kind"],
        "stock": verdict(stock, expected),
        "stock_ok": bool(stock.get("refused")) if expected is None else verdict(stock, expected) == EXACT,
        "patched": verdict(patched, expected),
        "ok": ok,
        "changed": changed,
        "why": why,
    }


def _judge_text(case: dict[str, Any], stock: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """Stock and patched must be identical on every key.

    If stock is wrong, because it resizes Qwen3-VL's images twice, patched may equal ``transformers`` instead.
    """
    unsteady = {*stock.get("unsteady", ()), *patched.get("unsteady", ())}
    patched_keys, stock_keys = patched.get("keys", {}), stock.get("keys", {})
    keys = {*patched_keys, *stock_keys} - unsteady
    changed = sorted(key for key in keys if patched_keys.get(key) != stock_keys.get(key))
    as_hf = verdict(patched, case["expected"]) == EXACT
    stock_wrong = verdict(stock, case["expected"]) != EXACT
    same = bool(keys) and not changed
    if same:
        why = f"identical on all {len(keys)} keys"
    elif as_hf and stock_wrong:
        why = "grids as transformers makes them; this SGLang resizes images twice"
    else:
        why = f"differs in {', '.join(changed)}" if keys else patched.get("error", "no result")
    return {
        "name": case["name"],
        "kind": case["kind"],
        "stock": verdict(stock, case["expected"]),
        "stock_ok": not stock_wrong,
        "patched": verdict(patched, case["expected"]),
        "ok": same or (as_hf and stock_wrong),
        "changed": changed,
        "why": why,
    }


def verdict(answer: dict[str, Any], expected: dict[str, Any] | None) -> str:
    """The verdict in a few words: ``exact``, what differs from the expected values, or the error."""
    if "error" in answer:
        kind = str(answer["error"].partition(":")[0])
        if kind == "TimeoutError":
            return "no answer"
        return "HTTP 400" if answer.get("refused") else f"HTTP 500, {kind}"
    if expected is None:
        return "served"
    if answer["input_ids"] != expected["input_ids"]:
        counts = len(answer["input_ids"]), len(expected["input_ids"])
        return f"{counts[0]} of {counts[1]} ids" if counts[0] != counts[1] else "other ids"
    wrong = [part for part in PARTS if answer[part] != expected[part]]
    return f"wrong {_short(wrong[0])}" if wrong else EXACT


def _short(part: str) -> str:
    return {"mrope_positions": "positions", "mrope_position_delta": "delta"}.get(part, part)


def _changed(stock: dict[str, Any], patched: dict[str, Any]) -> list[str]:
    if "error" in stock or "error" in patched:
        return ["error"] if stock.get("error") != patched.get("error") else []
    return [part for part in PARTS if stock[part] != patched[part]]


def _difference(answer: dict[str, Any], expected: dict[str, Any]) -> str:
    if "error" in answer:
        return str(answer["error"])
    return "differs from transformers in " + ", ".join(p for p in PARTS if answer[p] != expected[p])


def judge_rope(stock: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """The largest error of a rotation, compared with ``transformers``, stock and patched."""
    error = patched["error"]
    ok, stock_ok = (value is not None and value < ROPE_NOISE for value in (error, stock["error"]))
    note = "" if ok else patched["failure"] or f"the largest error is {error:.2g}"
    if ok and stock_ok:
        note = "right by itself here"
    return {"stock": stock["error"], "stock_ok": stock_ok, "patched": error, "ok": ok, "note": note}


def summary(cases: list[dict[str, Any]], rope: dict[str, Any]) -> str:
    """The verdict on all requests and the rope, in one line."""
    rows = [*cases, rope]
    right = [row for row in rows if row["ok"]]
    refused = sum(row.get("kind") == "refused" for row in right)
    counts = f"{len(right)} of {len(rows)} right ({len(right) - refused} exact, {refused} refused)"
    as_promised = "" if len(right) == len(rows) else ", NOT as promised"
    return f"patched: {counts}{as_promised}; stock: {sum(row['stock_ok'] for row in rows)} of {len(rows)}"
