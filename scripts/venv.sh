#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Creates the virtual environment in $1 and installs Volley into it, editable, with the extras in $2.
set -euo pipefail

readonly directory=$1 extras=$2

# The first Python that is new enough; 3.11 is the one that the suite runs on. The lock file is for it and newer ones.
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3.10 python3; do
        # A name on PATH may be a shim of a version that is not installed, so ask it.
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    echo "Volley needs Python 3.10 or newer. Install one, or name it: make PYTHON=/path/to/python3.11" >&2
    return 1
}

if [[ ! -x "$directory/bin/python" ]]; then
    python=$(find_python)
    echo "Creating $directory with $("$python" --version) ..."
    if ! "$python" -m venv "$directory"; then
        rm -rf "$directory"
        echo "$python cannot create virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 1
    fi
fi
echo "Installing Volley and what it needs (PySpark is large; the first time takes a minute or two) ..."
# On a terminal pip shows its progress; in a log that would be hundreds of lines.
quiet=--quiet
[[ -t 1 ]] && quiet=--no-color
# CI, and whoever sets LOCKED=1, gets the versions of constraints.txt; others the newest that pyproject.toml allows.
constraints=()
is_locked=${LOCKED:-${CI:-}}
"$directory/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || is_locked=
[[ -n "$is_locked" ]] && constraints=(--constraint constraints.txt)
# PySpark comes as a source archive. Compressing its wheel would double the time that it takes.
fast=--config-settings=--build-option=--compression=stored
"$directory/bin/python" -m pip install "$quiet" "$fast" --disable-pip-version-check "${constraints[@]}" --editable ".[$extras]"
