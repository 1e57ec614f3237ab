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
.PHONY: audit lock lowest newest sbom help install wheel testwheel demo test check format docs inspector bench chaos fuzz mcpb pictures clean

help: ## list what make can do
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install the gateway with everything its demo, tests and checks need

$(STAMP): LOCK := requirements.lock
$(STAMP): WHAT := the gateway, its demo engines and all its tools into $(VENV) (once; two minutes, 1.1 GB)
$(DEMO): LOCK := requirements-demo.lock
$(DEMO): WHAT := the gateway and its demo engines into $(VENV) (once; half a minute, 300 MB)
# Bytecode is a quarter of what pip would write; Python writes that of the modules it uses.
$(DEMO): PIP_OPTIONS := --no-compile
PIP_LOG := $(VENV)/pip.log
$(STAMP) $(DEMO): pyproject.toml requirements.lock requirements-demo.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rcp-gateway needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) # also where that was interrupted
	@echo "installing $(WHAT)"
	@pip() { $(BIN)/python -m pip install --disable-pip-version-check $(PIP_OPTIONS) "$$@"; }; \
	{ pip --require-hashes --requirement $(LOCK) && pip --no-deps --editable .; } >$(PIP_LOG) 2>&1 \
		|| { cat $(PIP_LOG); echo "the installation failed; what pip printed is above, and in $(PIP_LOG)"; exit 1; }
	@touch $@ $(DEMO) # all of it includes the demo

# The versions of all extras on every platform, with the hashes of their files, and the parts of them that the demo, a
# service and the image need. `make lock ARGS=--upgrade` takes the newest versions.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links pyproject.toml
PART := $(COMPILE) --constraint requirements.lock

lock: $(STAMP) ## renew requirements*.lock after a change of pyproject.toml
	@$(COMPILE) --all-extras --output-file requirements.lock $(ARGS)
	@$(PART) --extra demo --output-file requirements-demo.lock
	@$(PART) --extra http2 --extra jwt --extra otel --extra redis --output-file requirements-serve.lock
	@$(PART) --extra compile --extra demo --extra example --extra http2 --extra jwt --extra redis --output-file requirements-image.lock

# Of what a service installs, in an environment of its own.
.venv-serve/.installed: requirements-serve.lock $(STAMP)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-serve
	@VIRTUAL_ENV=.venv-serve $(BIN)/uv pip install --quiet --require-hashes --requirement requirements-serve.lock
	@touch $@

# Tools in environments of their own, outside the lock: nothing that runs comes from them.
TOOL := $(BIN)/uv tool run --quiet

sbom: .venv-serve/.installed ## write dist/sbom.cdx.json: what a service installs, in the format CycloneDX; needs the network
	@mkdir -p dist
	@$(TOOL) --from cyclonedx-bom==7.5.0 cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON --output-file dist/sbom.cdx.json .venv-serve/bin/python
	@echo "dist/sbom.cdx.json"

audit: ## ask the vulnerability database of PyPI about the locked versions; needs the network
	@$(TOOL) pip-audit==2.10.1 --strict --require-hashes --disable-pip --requirement requirements-serve.lock $(ARGS)

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

WHEEL_TESTS := tests/gateway tests/interop/test_conformance.py tests/interop/test_sdk_broadcast.py tests/interop/test_sdk_methods.py

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
LOWEST_TESTS := tests/gateway/test_fan_out.py tests/gateway/test_fused_answer.py tests/gateway/test_streaming.py tests/gateway/test_reload.py tests/gateway/test_mcp.py tests/gateway/test_tokens.py tests/gateway/test_traces.py tests/gateway/test_shared_state.py tests/unit/engines/http/test_http2_client.py tests/gateway/test_signals.py tests/unit/telemetry/test_worker_snapshots.py tests/unit/telemetry/test_tracing.py tests/unit/state/test_redis_errors.py tests/unit/server/test_early_signals.py tests/gateway/test_drain.py

lowest: $(STAMP) ## install the lowest versions that pyproject.toml declares into .venv-lowest and run black-box tests on them
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-lowest
	@VIRTUAL_ENV=.venv-lowest $(BIN)/uv pip install --quiet --resolution lowest-direct --editable '.[dev]'
	@.venv-lowest/bin/python -m pytest -q -n auto $(LOWEST_TESTS) $(ARGS)

newest: $(STAMP) ## install the newest versions of all dependencies into .venv-newest, with the newest Python here, and test them
	@newest=$$(for python in python3 python3.11 python3.12 python3.13 python3.14 python3.15 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.*/bin/python3; do \
		"$$python" -c 'import sys; print("%03d" % sys.version_info[1], sys.executable)' 2>/dev/null; done | sort | tail -n 1 | cut -d " " -f 2); \
	$(BIN)/uv venv --quiet --clear --python "$${newest:-$(PYTHON)}" .venv-newest
	@VIRTUAL_ENV=.venv-newest $(BIN)/uv pip install --quiet --upgrade --editable '.[dev]'
	@.venv-newest/bin/python --version
	@.venv-newest/bin/python -m pytest -q -n auto $(LOWEST_TESTS) $(ARGS)

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
	rm -rf $(VENV) .venv-lowest .venv-newest .venv-serve .venv-wheel .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist dist-mcpb *.egg-info
