"""All checks that need a GPU, one after the other, in less than 40 minutes: ``make gpu``.

The steps, each a process of its own with a limit of time:

``kernels``     our Triton kernels against the reference, and captured in a CUDA graph
``mrope``       our rotation beside SGLang's (`tests.bench.mrope`)
``qwen3_vl``    a stock and a patched server of the tiny Qwen3-VL, beside ``transformers``
``qwen3_5``     the same of the tiny Qwen3.5

What they print goes to the screen, and at the end into a report (``--out``). The servers need a complete
SGLang for CUDA, with deepeyes-patch and the packages of the lab's tests beside it: ``--sglang`` names its
interpreter. The lab's own environments have stand-ins for SGLang's CUDA kernels.

Without a CUDA device the script says so and ends with 2. With ``--device cpu`` it does all that needs none,
to try the script itself: Triton's interpreter in place of the GPU, no capture, and CPU servers of Qwen3-VL.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.lab import signals
from tests.lab.environments import CHECKOUT, python_of

NO_DEVICE, FAILED = 2, 1
STOP_SECONDS = 60  # a step stops its servers


@dataclass(frozen=True)
class Step:
    """``command``: arguments of an interpreter. ``python``: of the lab, or that of ``--sglang``."""

    name: str
    python: str
    command: tuple[str, ...]
    seconds: int
    needs_cuda: bool = False


SGLANG = "--sglang"
STEPS = (
    Step("kernels", "base", ("-m", "tests.bench.gpu_kernels"), 300),
    Step("mrope", "0.5.3", ("-m", "tests.bench.mrope"), 420, needs_cuda=True),
    Step("qwen3_vl", SGLANG, ("-m", "tests.bench.gpu_servers", "--kind", "qwen3_vl"), 780),
    # On a CPU, SGLang has no kernel for its linear attention.
    Step("qwen3_5", SGLANG, ("-m", "tests.bench.gpu_servers", "--kind", "qwen3_5"), 780, needs_cuda=True),
)
BUDGET_SECONDS = 40 * 60
assert sum(step.seconds for step in STEPS) < BUDGET_SECONDS


def run(step: Step, device: str, sglang: str) -> tuple[str, str]:
    """What became of a step, in a word or two, and what it printed."""
    if step.needs_cuda and device != "cuda":
        return "not run: it needs CUDA", ""
    python = sglang if step.python == SGLANG else str(python_of(step.python))
    more = () if step.name == "mrope" else ("--device", device)
    variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if device == "cpu":
        variables["TRITON_INTERPRET"] = "1"
    with signals.held():
        process = subprocess.Popen(
            [python, *step.command, *more],
            cwd=CHECKOUT,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        printed, _ = process.communicate(timeout=step.seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            printed, _ = process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
        return f"FAILED: not done after {step.seconds} s", printed
    finally:
        if process.poll() is None:  # interrupted
            process.terminate()
    return ("passed" if process.returncode == 0 else f"FAILED: ended with {process.returncode}"), printed


def has_cuda() -> bool:
    """Asked in a process of its own: a process that has opened the device keeps memory on it."""
    code = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 1)"
    return subprocess.run([python_of("base"), "-c", code], check=False).returncode == 0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments.add_argument(
        "--sglang", help="interpreter of a complete SGLang; --device cpu: the lab's 0.5.23"
    )
    arguments.add_argument("--out", type=Path, default=CHECKOUT / ".lab/gpu.md")
    arguments.add_argument("--steps", nargs="+", choices=[step.name for step in STEPS])
    chosen = arguments.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if chosen.device == "cuda" and not has_cuda():
        print("There is no CUDA device here: nothing was run. (--device cpu tries the script without one.)")
        return NO_DEVICE
    # The environments of the lab that the steps need; not counted as theirs.
    subprocess.run([sys.executable, "tests/lab/environments.py", "0.5.3", "0.5.23"], cwd=CHECKOUT, check=True)
    sglang = chosen.sglang or (str(python_of("0.5.23")) if chosen.device == "cpu" else "python3")
    begin = time.monotonic()
    verdicts: dict[str, str] = {}
    parts: list[str] = []
    for step in STEPS:
        if chosen.steps and step.name not in chosen.steps:
            continue
        print(f"--- {step.name} (at most {step.seconds} s)", flush=True)
        start = time.monotonic()
        verdict, printed = run(step, chosen.device, sglang)
        verdicts[step.name] = f"{verdict}; {time.monotonic() - start:.0f} s"
        print(f"{printed}\n{step.name}: {verdicts[step.name]}\n", flush=True)
        parts.append(f"## {step.name}\n\n{verdicts[step.name]}\n\n```text\n{printed.rstrip()}\n```\n")
    heading = f"# On {chosen.device}, {time.strftime('%Y-%m-%d')}, {time.monotonic() - begin:.0f} s\n"
    table = [f"- {name}: {verdict}" for name, verdict in verdicts.items()]
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text("\n".join([heading, *table, "", *parts]))
    print("\n".join([*table, f"report: {chosen.out}"]))
    return FAILED if any("FAILED" in verdict for verdict in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
