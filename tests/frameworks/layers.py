"""The packages of each framework: a layer of the lab's cache for each, and an environment with it.

Everything is installed without dependencies. A layer stands last on the path: where it and the lab have the
same package, the lab's counts. ``pip install --dry-run`` of the framework names the candidates of a row.
"""

from __future__ import annotations

from pathlib import Path

from tests.e2e import interpreters
from tests.lab import environments
from tests.lab.releases import RELEASES

STANDINS = Path(__file__).resolve().parent / "standins"

PINS: dict[str, tuple[str, ...]] = {
    "strands": (
        "strands-sglang==0.4.3",  # 0.5.0 and newer need Python 3.12
        "strands-agents==1.62.0",
        "opentelemetry-sdk==1.45.1",
        "opentelemetry-semantic-conventions==0.66b1",
        "opentelemetry-instrumentation==0.66b1",
        "opentelemetry-instrumentation-threading==0.66b1",
        "watchdog==6.0.0",
        # strands imports its default model, which is Amazon's.
        "boto3==1.44.8",
        "botocore==1.44.8",
        "jmespath==1.1.0",
        "s3transfer==0.19.3",
    ),
    # The wheel holds copies of SGLang and of Megatron's core. On this path, the lab's SGLang comes first.
    "miles": ("miles-rl==0.0.2", *environments.RAY, "pylatexenc==2.11"),
    "areal": (
        "areal==1.0.4",
        *environments.RAY,
        "aiofiles==25.1.0",
        "blinker==1.9.0",
        "colorlog==6.12.0",
        "flask==3.1.3",
        "hydra-core==1.4.0.dev1",
        "itsdangerous==2.2.0",
        "omegaconf==2.4.0.dev2",
        "tenacity==9.2.1",
        "torchdata==0.11.0",
        "werkzeug==3.1.9",
    ),
    "verl": (
        "verl==0.9.1",
        *environments.RAY,
        "accelerate==1.15.0",  # peft imports it
        "antlr4-python3-runtime==4.9.3",
        "cachetools==8.0.2",
        "codetiming==1.4.0",
        "hydra-core==1.3.8",
        "omegaconf==2.4.0",
        "peft==0.21.2",
        "pyvers==0.2.3",
        "qwen-vl-utils==0.0.14",
        "tensordict==0.10.0",  # the newest that verl takes
        "torchdata==0.11.0",
        "TransferQueue==0.1.11",
    ),
}


def layer(framework: str) -> Path:
    """The folder of the cache with a framework's packages, installed on the first call."""
    return environments.packages_layer(framework, *PINS[framework])


def python(framework: str, folder: Path, release: str | None = None) -> Path:
    """The interpreter of an environment in ``folder``: a release's, and the framework after it.

    Without ``release``, it is the release of the running environment.
    """
    path = [*interpreters.layers(), layer(framework)]
    if release is not None:
        environments.ensure([release])
        path[path.index(interpreters.release_layer())] = environments.overlay(RELEASES[release])
    if (STANDINS / framework).is_dir():
        path.append(STANDINS / framework)
    return interpreters.build(folder, path, with_our_package=True)
