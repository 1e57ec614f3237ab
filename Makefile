# One command for each act; `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.installed-demo
ARGS   ?=
QUESTION := $(value ARGS)
unexport ARGS
export QUESTION

.DEFAULT_GOAL := help
.PHONY: lowest help install wheel testwheel demo test check format docs inspector bench chaos fuzz mcpb pictures clean

help: ## list what make can do
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install the gateway with everything its demo, tests and checks need

$(STAMP): EXTRAS := demo,dev,eval,compile,browser,deploy,mcp-clients
$(STAMP): WHAT := the gateway, its demo engines and all its tools (a minute or two the first time; 1.1 GB)
$(DEMO): EXTRAS := demo,dev,eval
$(DEMO): WHAT := the gateway and its demo engines (a minute or two the first time; 0.5 GB)
$(STAMP) $(DEMO): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rcp-gateway needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); } # also where that was interrupted
	@echo "installing $(WHAT)"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --constraint requirements.lock --editable '.[$(EXTRAS)]'
	@touch $@ $(DEMO) # all of it includes the demo

# Without build isolation, so that mypyc sees the locked versions and the types of the dependencies.
wheel: dist/.built ## build dist/*.whl with compiled modules (some minutes; needs a C compiler and Python's headers)

dist/.built: $(STAMP) setup.py pyproject.toml README.md LICENSE $(shell find app -type f -not -name '*.pyc' 2>/dev/null)
	@echo "compiling the modules listed in pyproject.toml and packing the wheel"
	@rm -rf build dist # setuptools would pack what an earlier build left there
	@RCP_GATEWAY_COMPILE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .
	@touch $@

# The wheel in an environment of its own, which does not see the sources.
.venv-wheel/.installed: dist/.built
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-wheel
	@VIRTUAL_ENV=.venv-wheel $(BIN)/uv pip install --quiet --constraint requirements.lock "$$(echo dist/*.whl)[demo,dev]"
	@touch $@

WHEEL_TESTS := tests/gateway tests/interop/test_conformance.py tests/interop/test_sdk_gathering.py tests/interop/test_sdk_methods.py

testwheel: .venv-wheel/.installed ## run the black-box tests on the installed wheel, outside the checkout
	@set -e; python=$$(pwd)/.venv-wheel/bin/python; copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	cp -R pyproject.toml README.md bench config deploy docs tests "$$copy"; cd "$$copy"; \
	"$$python" -c 'from app.main import COMPILED; raise SystemExit(not COMPILED)'; \
	"$$python" -m pytest -q -n auto $(WHEEL_TESTS) $(ARGS)

demo: $(DEMO) ## start the gateway with three demo engines on http://127.0.0.1:8080 and ask it; ARGS="…" asks something else
	@$(BIN)/rcp-gateway demo $(if $(filter -%,$(firstword $(QUESTION))),$(ARGS),$${QUESTION:+"$$QUESTION"}) # a question may hold what the shell would obey

test: $(STAMP) ## run the whole test suite; the tests of the shared state need a redis-server, or one at REDIS_URL
	@$(BIN)/python -m pytest -n auto $(ARGS)

# Black-box tests of what each direct dependency is used for.
LOWEST_TESTS := tests/gateway/test_fan_out.py tests/gateway/test_fused_answer.py tests/gateway/test_streaming.py tests/gateway/test_reload.py tests/gateway/test_mcp.py tests/gateway/test_tokens.py tests/gateway/test_traces.py tests/gateway/test_shared_state.py tests/unit/engines/http/test_http2_client.py tests/gateway/test_signals.py tests/unit/telemetry/test_worker_snapshots.py tests/unit/telemetry/test_tracing.py tests/unit/state/test_redis_errors.py

lowest: $(STAMP) ## install the lowest versions that pyproject.toml declares into .venv-lowest and run black-box tests on them
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-lowest
	@VIRTUAL_ENV=.venv-lowest $(BIN)/uv pip install --quiet --resolution lowest-direct --editable '.[dev]'
	@.venv-lowest/bin/python -m pytest -q -n auto $(LOWEST_TESTS) $(ARGS)

check: $(STAMP) ## lint, formatting and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

pictures: $(STAMP) ## take the pictures of the console for docs/images, with the Chromium that is installed
	@$(BIN)/python -m tests.support.pictures docs/images

format: $(STAMP) ## let ruff put the code in order
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs: $(STAMP) ## write anew what is made from something else: tables of keys and settings, copies of alerts
	@$(BIN)/python -m docs._generate

mcpb: $(STAMP) ## build an MCP bundle for desktop assistants and its registry entry in dist-mcpb; ARGS="--url …" says where it is published
	@$(BIN)/python deploy/mcpb/build.py $(ARGS)

inspector: ## put other MCP clients, the conformance suite and mcpb (and the Node they need) into .venv, for tests; needs npm
	@npm install --prefix $(VENV)/inspector --no-audit --no-fund --loglevel error node@22 @modelcontextprotocol/inspector@0.15.0 \
	@modelcontextprotocol/conformance@0.2.0-alpha.12 @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2 @anthropic-ai/mcpb@2.1.2

bench: .venv-wheel/.installed ## measure CPU per retrieve of the wheel and of the sources against a bare floor
	@$(BIN)/python -m bench.compare --python .venv-wheel/bin/python $(ARGS)

chaos: $(STAMP) ## 10,000 requests with engines that are sick in every way (some minutes); ARGS="--seed 7" repeats a run
	@$(BIN)/python -m tests.chaos $(ARGS)

fuzz: $(STAMP) ## 10,000 cases each of odd bytes from callers, engines and files; ARGS="--of files --cases 100000 --seed 7"
	@$(BIN)/python -m tests.fuzz $(ARGS)

clean: ## remove what install and the tools created
	rm -rf $(VENV) .venv-lowest .venv-wheel .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist dist-mcpb *.egg-info
