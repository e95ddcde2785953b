#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that Spark will find Java 17 or newer. Installs Debian's package when it may, otherwise says what to do.
set -euo pipefail

readonly wanted=17

# The Java that Spark would start: JAVA_HOME wins over PATH.
spark_java() {
    if [[ -n "${JAVA_HOME:-}" ]]; then
        printf '%s\n' "$JAVA_HOME/bin/java"
    else
        command -v java || true
    fi
}

# "17.0.15" and "25-ea" give 17 and 25, "1.8.0_402" gives 8; nothing when it does not run.
major_version() {
    local version
    version=$("$1" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' | head -n 1) || return 0
    version=${version#1.}
    printf '%s\n' "${version%%[!0-9]*}"
}

is_good() {
    local java=$1 major
    [[ -n "$java" && -x "$java" ]] || return 1
    major=$(major_version "$java")
    [[ -n "$major" && "$major" -ge $wanted ]]
}

explain() {
    {
        if [[ -n "${JAVA_HOME:-}" ]]; then
            echo "JAVA_HOME=$JAVA_HOME does not hold Java $wanted or newer, and Spark looks nowhere else while it is set."
            echo "  Point it at a newer Java, or unset JAVA_HOME so that the java on PATH is used."
        else
            echo "Spark needs Java $wanted or newer; ${1:-no java was found on PATH}."
        fi
        echo "  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless"
        echo "  Fedora, RHEL:    sudo dnf install java-17-openjdk-headless"
        echo "  macOS:           brew install openjdk@17 && export JAVA_HOME=\$(brew --prefix openjdk@17)"
        echo "Then run make again."
    } >&2
}

install_on_debian() {
    [[ -f /etc/debian_version && $(id -u) -eq 0 ]] && command -v apt-get >/dev/null || return 1
    echo "Java $wanted is missing; installing Debian's headless runtime ..."
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || true
    # Newer Debian releases have dropped 17; their default is newer still, which Spark accepts.
    apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null 2>&1 ||
        apt-get install -y -qq --no-install-recommends default-jre-headless >/dev/null
}

java=$(spark_java)
is_good "$java" && exit 0
if [[ -z "${JAVA_HOME:-}" ]] && install_on_debian; then
    hash -r
    java=$(spark_java)
    is_good "$java" && exit 0
fi
explain "${java:+$java is version $(major_version "$java")}"
exit 1
