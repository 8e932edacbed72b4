"""`python -m grader VERB`; the Makefile is a thin face over it."""

import sys

from grader.cli import main

sys.exit(main())
