# `make demo` and `make test` set up all they need; the first run takes minutes (torch, six SGLang releases).

PYTHON ?= python3
RELEASES := $(shell $(PYTHON) tests/lab/releases.py)
SERVED := 0.5.3 0.5.12.post1 0.5.23

.PHONY: help demo smoke test lint lab unit install docs sglang e2e matrix load fuzz clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   the real SGLang, stock and patched, on a rollout request (no GPU needed)"
	@echo "make smoke  rollout -> train step -> update of the server's weights, three times"
	@echo "make test   the whole suite"
	@echo "make lint   ruff and mypy"
	@echo "make unit | install | docs | sglang | e2e   one layer of the suite; docs also builds the site in .site"
	@echo "make matrix [RELEASE=0.5.9]   every SGLang release, or one; writes docs/compatibility.md"
	@echo "make load [RELEASE=0.5.23]   2,000 requests for one server, a tenth of them malformed"
	@echo "make fuzz [RELEASE=0.5.23]   ten minutes of random requests for the processor class"

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

# What takes half an hour first, on one of the two cores each, so that neither idles at the end. All failures are
# shown, not the first alone.
test: lint unit install docs
	@$(MAKE) --jobs=2 --keep-going --output-sync=target e2e sglang

lint: lab
	.lab/base/bin/python -m ruff check .
	.lab/base/bin/python -m ruff format --check .
	.lab/base/bin/python -m mypy

unit: lab
	.lab/base/bin/python -m pytest -q tests/unit

install: lab
	.lab/base/bin/python -m pytest -q tests/install

docs: lab
	@$(PYTHON) tests/lab/environments.py docs
	.lab/docs/bin/python -m sphinx -q -W --keep-going -E -b html -d .lab/doctrees -c docs/site docs .site
	.lab/base/bin/python -m pytest -q tests/docs

sglang: $(RELEASES:%=sglang-%)

e2e: e2e-0.5.12.post1 e2e-0.5.23 e2e-0.5.3 e2e-0.5.3.post1  # the longest first

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
		tests/e2e/test_verify.py tests/e2e/test_smoke.py

e2e-0.5.3.post1:
	@$(PYTHON) tests/lab/environments.py 0.5.3.post1
	.lab/0.5.3.post1/bin/python -m pytest -q tests/e2e/test_rope.py

# Not part of the suite: an hour on two cores. Interrupted, it goes on where it stopped.
matrix:
	@$(PYTHON) -m tests.matrix.run $(RELEASE)

# Minutes each; short versions are in the suite.
load:
	@$(PYTHON) tests/lab/environments.py base $(or $(RELEASE),0.5.23)
	@.lab/base/bin/python -m tests.load.run $(or $(RELEASE),0.5.23)

fuzz:
	@$(PYTHON) tests/lab/environments.py base $(or $(RELEASE),0.5.23)
	@.lab/base/bin/python -m tests.fuzz.run $(or $(RELEASE),0.5.23)

clean:
	rm -rf .lab .site dist
