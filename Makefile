# Every target sets up what it needs; the first run takes minutes (torch, six SGLang releases).

PYTHON ?= python3
RELEASES := $(shell $(PYTHON) tests/lab/releases.py)
OTHER_TRANSFORMERS := $(shell $(PYTHON) tests/lab/releases.py transformers)
SERVED := 0.5.3 0.5.12.post1 0.5.23

# Three speeds. tests/speeds.py says which tests a speed runs in each of these suites. The longest suites come first,
# so that neither core is idle at the end.
CHECK_SUITES := e2e-0.5.23 unit sglang-0.5.3 sglang-0.5.23 lint links
TEST_SUITES := e2e-0.5.23 e2e-0.5.3 e2e-0.5.12.post1 install unit $(RELEASES:%=sglang-%) docs lint
FRAMEWORKS := frameworks-0.5.12.post1 frameworks-0.5.23
THEIRS := $(RELEASES:%=upstream-tests-%)
NIGHTLY_SUITES := matrix upstream e2e-0.5.12.post1 e2e-0.5.23 e2e-0.5.3 $(FRAMEWORKS) load fuzz install unit \
	$(RELEASES:%=sglang-%) $(OTHER_TRANSFORMERS:%=sglang-%) e2e-0.5.3.post1 e2e-0.5.16 e2e-0.5.19 \
	$(THEIRS) docs lint

SPEED ?= test
SUITES = $($(shell echo $(SPEED) | tr a-z A-Z)_SUITES)
PYTEST := -m pytest -q --speed=$(SPEED)
# All failures are shown, not the first alone. The output of a suite is printed when the suite has ended.
TOGETHER := $(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target

.PHONY: help check test nightly base suites cost coverage demo smoke lint lab unit install links docs sglang e2e \
	frameworks matrix load fuzz gpu upstream upstream-tests clean
.DEFAULT_GOAL := help

help:
	@echo "make check     minutes: lint, unit, pages, the core on the newest and the oldest release"
	@echo "make test      half an hour: every layer; the newest release in full, the core on the others"
	@echo "make nightly   hours: all tests on all tested releases, then the matrix, load and fuzz; writes a tally"
	@echo
	@echo "make demo   the real SGLang, stock and patched, on a rollout request (no GPU needed)"
	@echo "make smoke  rollout -> train step -> update of the server's weights, three times"
	@echo "make lint   ruff and mypy"
	@echo "make unit | install | docs | sglang | e2e   one layer of \`make test\`; docs also builds the site in .site"
	@echo "     SPEED=check | nightly   the same layer at another speed"
	@echo "make frameworks   RL frameworks' own clients on real servers; \`make test\` has the quickest of them"
	@echo "make matrix [RELEASE=0.5.9]   every SGLang release, or one; writes docs/*/releases.md"
	@echo "make load [RELEASE=0.5.23]   2,000 requests for one server, a tenth of them malformed"
	@echo "make fuzz [RELEASE=0.5.23]   ten minutes of random requests for the processor class"
	@echo "make upstream   the change made for SGLang itself, on a copy of 0.5.23, with the package off"
	@echo "make upstream-tests   the tests that SGLang's wheels bring, with our switch off and on"
	@echo "make gpu [SGLANG_PYTHON=python3]   on a machine with CUDA: kernels, CUDA graphs, the rope's speed, servers"
	@echo "make cost [SPEED=check]   CPU seconds of each suite, and of each start of a server"
	@echo "make coverage   after \`make nightly\`: the branches that it visited and \`make test\` does not"

check:
	@$(TOGETHER) SPEED=check $(CHECK_SUITES)

test:
	@$(TOGETHER) SPEED=test $(TEST_SUITES)

# Interrupted, it says where it stopped, and goes on there the next time.
nightly:
	@$(PYTHON) -m tests.nightly $(NIGHTLY_SUITES)

suites:
	@echo $(SUITES)

cost:
	@$(PYTHON) -m tests.cost --speed=$(SPEED) $(SUITES)

coverage:
	@$(PYTHON) -m tests.coverage

lab:
	@$(PYTHON) tests/lab/environments.py

base:
	@$(PYTHON) tests/lab/environments.py base

demo:
	@$(PYTHON) tests/lab/environments.py base $(SERVED)
	@.lab/base/bin/python -m tests.e2e.demo $(SERVED)

# One after the other, each with its table. The suite runs the same tests.
smoke: $(SERVED:%=smoke-%)

smoke-%:
	@$(PYTHON) tests/lab/environments.py $*
	.lab/$*/bin/python -m pytest -q -s -W ignore tests/e2e/test_smoke.py

lint: base
	.lab/base/bin/python -m ruff check .
	.lab/base/bin/python -m ruff format --check .
	.lab/base/bin/python -m mypy

unit: base
	.lab/base/bin/python $(PYTEST) tests/unit

install: base
	.lab/base/bin/python $(PYTEST) tests/install

# The pages: links and much more. Their site is built in .site, which takes seconds.
links: base
	@$(PYTHON) tests/lab/environments.py docs
	.lab/base/bin/python $(PYTEST) tests/docs

docs: base
	@$(PYTHON) tests/lab/environments.py docs
	.lab/docs/bin/python docs/site/build.py
	.lab/base/bin/python $(PYTEST) tests/docs

sglang: $(RELEASES:%=sglang-%)

e2e: $(filter e2e-%,$(TEST_SUITES))

# Each release has an environment of its own; its tests run inside it.
sglang-%:
	@$(PYTHON) tests/lab/environments.py $*
	.lab/$*/bin/python $(PYTEST) tests/sglang

e2e-%:
	@$(PYTHON) tests/lab/environments.py $*
	.lab/$*/bin/python $(PYTEST) $(or $(FILES:%=tests/e2e/%.py),tests/e2e) $(MORE)

# What differs in the releases that need our rope; how SGLang is stopped is the same in all.
e2e-0.5.3: FILES = test_rope test_parallel test_prompt_logprobs test_rollout test_sampling test_verify test_smoke
e2e-0.5.3.post1: FILES = test_rope
# Where Qwen3-VL-MoE's deepstack features go wrong, each in its way.
e2e-0.5.16 e2e-0.5.19: FILES = test_fusion
# The quickest of the frameworks, on the servers of tests/e2e.
e2e-0.5.23: MORE = tests/frameworks/test_strands.py

frameworks: $(FRAMEWORKS)

frameworks-%:
	@$(PYTHON) tests/lab/environments.py $*
	.lab/$*/bin/python -m pytest -q tests/frameworks

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

# The changes of docs/upstream, made for this release.
upstream:
	@$(PYTHON) tests/lab/environments.py base 0.5.23
	@.lab/0.5.23/bin/python -W ignore -m tests.upstream.run

upstream-tests: $(THEIRS)

upstream-tests-%:
	@$(PYTHON) tests/lab/environments.py base $*
	@.lab/$*/bin/python -W ignore -m tests.upstream.theirs

# Under 40 minutes. Without a CUDA device it says so, and fails.
gpu: base
	@.lab/base/bin/python -m tests.bench.gpu $(if $(SGLANG_PYTHON),--sglang $(SGLANG_PYTHON))

clean:
	rm -rf .lab .site dist
