#!/bin/sh
# Makes .venv from any state and installs the requirements files that are named.
# When all is installed already this takes milliseconds: it compares files.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python

find_python() {
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

make_venv() {
    base=$(find_python)
    if [ -z "$base" ]; then
        echo "The kit needs Python 3.11 or newer, and finds none." >&2
        echo "Install one, for example: sudo apt install python3 python3-venv" >&2
        exit 3
    fi
    if ! "$base" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "Python's venv module is missing: sudo apt install python3-venv" >&2
        echo "Or use an interpreter that has the packages: make PYTHON=... (see requirements.txt)" >&2
        exit 3
    fi
    rm -rf .venv
    "$base" -m venv .venv
}

for file in "$@"; do
    cmp -s "$file" ".venv/installed-$file" && [ -x "$python" ] && continue
    "$python" -m pip --version >/dev/null 2>&1 || {
        echo "Setting up .venv (once, about 15 seconds) ..." >&2
        make_venv
    }
    if ! "$python" -m pip install --quiet --disable-pip-version-check -r "$file" >&2; then
        echo "pip could not install $file; the lines above say why." >&2
        exit 3
    fi
    cp "$file" ".venv/installed-$file"
done
