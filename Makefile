# Each target is one command of the grader: `python -m grader VERB` does the same without make.
#
#   chapter=11            a chapter (11, 011 or ch11_causal_classifier)
#   exercise=mean_pool    one of its exercises
#   impl=FOLDER           judge FOLDER/chNN_name.py instead of exercises/
#   json=1, strict=1      grade for programs; make it fail unless all is done
#   PYTHON=python3.12     use this interpreter and its packages instead of making .venv
#   TORCH_INDEX=          take PyTorch from pip's ordinary index

PYTHON ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
export TORCH_INDEX

ifeq ($(PYTHON),)
GRADER := .venv/bin/python -m grader
SETUP := @sh grader/setup.sh
else
GRADER := $(PYTHON) -m grader
SETUP := @:
endif

one = $(if $(chapter),"$(chapter)") $(if $(exercise),"$(exercise)")
from = $(if $(impl),--impl "$(impl)")

.DEFAULT_GOAL := help

.PHONY: help
help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@sed -n 's/^#   /  /p' $(MAKEFILE_LIST)

.PHONY: grade
grade:  ## show where you stand: every chapter, or with chapter= every exercise
	$(SETUP) requirements.txt
	@$(GRADER) grade $(if $(chapter),"$(chapter)") $(from) $(if $(strict),--strict) $(if $(json),--json)

.PHONY: test
test:  ## run a chapter's tests (chapter=11, exercise=mean_pool) and name the mistakes
	$(SETUP) requirements.txt
	@$(GRADER) test $(one) $(from)

.PHONY: tests  # a folder of that name would make `make tests` do nothing
tests: test

.PHONY: watch
watch:  ## run a chapter's tests again at every save
	$(SETUP) requirements.txt
	@$(GRADER) watch $(one) $(from)

.PHONY: hint
hint:  ## the next hint for the exercise you are at, or the one named
	$(SETUP) requirements.txt
	@$(GRADER) hint $(one)

.PHONY: read
read:  ## the walkthrough in the terminal, answers folded (unfold=1 shows them)
	$(SETUP) requirements.txt
	@$(GRADER) read $(one) $(if $(unfold),--unfold)

.PHONY: diff
diff:  ## your exercise against the reference's (reveal=1 before it passes)
	$(SETUP) requirements.txt
	@$(GRADER) diff $(one) $(from) $(if $(reveal),--reveal)

.PHONY: reset
reset:  ## put a stub back, keeping a copy of your work
	$(SETUP) requirements.txt
	@$(GRADER) reset $(one)

.PHONY: stubs
stubs:  ## write exercises/ from solutions/, never over your work
	$(SETUP) requirements.txt
	@$(GRADER) stubs $(if $(chapter),"$(chapter)")

.PHONY: bench
bench:  ## how quick the kit is on this machine, as ratios
	$(SETUP) requirements.txt
	@$(GRADER) bench $(if $(chapter),"$(chapter)")

.PHONY: check
check:  ## prove the kit itself: every test, wrong answer, document and rule
	$(SETUP) requirements.txt requirements-dev.txt
	@$(GRADER) check $(if $(chapter),"$(chapter)")
