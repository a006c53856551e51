# Everything starts from a fresh clone: each target below first brings .venv up to date.
#
#   PYTHON=...       the Python to build .venv from (default: the first suitable one found)
#   TORCH_INDEX=...  an additional package index for torch. The main one has the CUDA build, several
#                    gigabytes; PyTorch's own index of CPU builds (see its installation page) a tenth.
#   ARGS=...         passed on: make demo ARGS=..., make test ARGS='-k world', make bench ARGS=sim

PYTHON ?=
TORCH_INDEX ?=
ARGS ?=
export PYTHON TORCH_INDEX

SET_UP := sh scripts/setup.sh
BIN := .venv/bin

# A part of the ROS tests: what differs from one distribution to the next.
KILTED_TESTS := test_convert test_parameters test_policy_node test_node_options test_simulator_node test_doctor

.PHONY: help setup demo test test-kilted lint check bench

help:
	@echo 'make demo    drive four robots to their goals in simulation, over real ROS 2'
	@echo 'make test    run the test suite'
	@echo 'make test-kilted  run part of the ROS tests on ROS 2 Kilted (make test is on Jazzy)'
	@echo 'make check   what CI runs: lint, format, types, import rules, tests'
	@echo 'make lint    make check without the tests'
	@echo 'make bench   measure throughput and latency on this machine'
	@echo 'make setup   only create or update .venv, for all of the above'
	@echo 'Variables (PYTHON, TORCH_INDEX, ARGS) are explained at the top of the Makefile.'

setup:
	@$(SET_UP) test

demo:
	@$(SET_UP) demo
	@$(BIN)/python -m scanpilot_ros.demo $(ARGS)

test:
	@$(SET_UP) test
	$(BIN)/python -m pytest $(ARGS)

# Where ROS is sourced, that one is what tests run on.
test-kilted:
	@$(SET_UP) test
	@if [ -n "$$AMENT_PREFIX_PATH" ]; then echo 'ROS is sourced: not testing on Kilted wheels'; exit 0; fi; \
	$(BIN)/python scripts/kilted.py && .venv-kilted/bin/python -m pytest -p no:cacheprovider \
		$(or $(ARGS),$(KILTED_TESTS:%=tests/ros/%.py))

# All of them, so that one run shows everything there is to mend.
lint:
	@$(SET_UP) test
	@failed=0; \
	for tool in 'ruff check .' 'ruff format --check .' mypy 'lint-imports --no-cache'; do \
		echo "== $$tool"; $(BIN)/$$tool || failed=1; \
	done; \
	exit $$failed

check: lint test

bench:
	@$(SET_UP) demo
	$(BIN)/scanpilot bench $(ARGS)
