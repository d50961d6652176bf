# `make demo` and `make test` set up all they need; the first run takes minutes (torch, six SGLang releases).

PYTHON ?= python3
RELEASES := $(shell $(PYTHON) tests/lab/releases.py)
SERVED := 0.5.3 0.5.12.post1 0.5.23

.PHONY: help demo smoke test lint lab unit install sglang e2e matrix clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   the real SGLang, stock and patched, on a rollout request (no GPU needed)"
	@echo "make smoke  rollout -> train step -> update of the server's weights, three times"
	@echo "make test   the whole suite"
	@echo "make lint   ruff and mypy"
	@echo "make unit | install | sglang | e2e   one layer of the suite"
	@echo "make matrix [RELEASE=0.5.9]   every SGLang release, or one; writes docs/compatibility.md"

lab:
	@$(PYTHON) tests/lab/environments.py

demo:
	@$(PYTHON) tests/lab/environments.py base $(SERVED)
	@.lab/base/bin/python -m tests.e2e.demo $(SERVED)

# One after the other, each with its table. The suite runs the same tests.
smoke: $(SERVED:%=smoke-%)

smoke-%:
	@$(PYTHON) tests/lab/environments.py $*
	.lab/$*/bin/python -m pytest -q -s -W ignore tests/e2e/test_smoke.py

# The processor suites run on one thread each, so two at a time; servers want the machine for themselves.
test: lint unit install
	@$(MAKE) --jobs=2 --output-sync=target sglang
	@$(MAKE) e2e

lint: lab
	.lab/base/bin/python -m ruff check .
	.lab/base/bin/python -m ruff format --check .
	.lab/base/bin/python -m mypy

unit: lab
	.lab/base/bin/python -m pytest -q tests/unit

install: lab
	.lab/base/bin/python -m pytest -q tests/install

sglang: $(RELEASES:%=sglang-%)

e2e: e2e-0.5.3 e2e-0.5.3.post1 e2e-0.5.12.post1 e2e-0.5.23

# Each release has an environment of its own; its tests run inside it.
sglang-%:
	@$(PYTHON) tests/lab/environments.py $*
	.lab/$*/bin/python -m pytest -q tests/sglang

e2e-%:
	@$(PYTHON) tests/lab/environments.py $*
	.lab/$*/bin/python -m pytest -q tests/e2e

# What differs in the releases that need our rope; how SGLang is stopped is the same in all.
e2e-0.5.3:
	@$(PYTHON) tests/lab/environments.py 0.5.3
	.lab/0.5.3/bin/python -m pytest -q tests/e2e/test_rope.py tests/e2e/test_parallel.py tests/e2e/test_rollout.py \
		tests/e2e/test_smoke.py

e2e-0.5.3.post1:
	@$(PYTHON) tests/lab/environments.py 0.5.3.post1
	.lab/0.5.3.post1/bin/python -m pytest -q tests/e2e/test_rope.py

# Not part of the suite: an hour on two cores. Interrupted, it goes on where it stopped.
matrix:
	@$(PYTHON) -m tests.matrix.run $(RELEASE)

clean:
	rm -rf .lab dist
