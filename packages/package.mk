# What every package's Makefile includes: the environment is the repository's own, .venv at its root, set up once for all.
ROOT := $(realpath $(dir $(lastword $(MAKEFILE_LIST)))/..)
BIN := $(ROOT)/.venv/bin

.PHONY: ready demo test test-all bench
.NOTPARALLEL:

ready:
	@$(MAKE) --no-print-directory -C $(ROOT) .venv/.ready

test-all: test  ## the thorough tests too, where a package has some
