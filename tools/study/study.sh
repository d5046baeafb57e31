# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev study: the study runner of tools/study. Sourced by ./dev, which sets target_dir.
# shellcheck disable=SC2154

# What results are analysed with: Debian's, so for Debian's Python.
study_libraries=(python3 python3-numpy python3-scipy python3-pandas python3-statsmodels python3-matplotlib)
study_python=/usr/bin/python3

# runner ARGUMENTS...: the study runner, with its libraries found only in its own process.
runner() {
    env PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore::DeprecationWarning "$study_python" "$@"
}

study() {
    local listed profile=release
    local -a programs=() options=("$@")
    [[ $# -gt 0 && $1 != -* ]] ||
        die "study needs the name of a study first: ./dev study NAME [--quick] [--resume] [--seed N];" \
            "studies/ has $(basename -s .toml -a studies/*.toml | paste -sd ' ')"
    install_missing "${study_libraries[@]}" >&2
    # Reports mistakes in the study's file before anything is built.
    listed=$(runner -m study "$@" --packages) || exit 1
    mapfile -t programs < <(printf '%s' "${listed:+$listed$'\n'}")
    # A quick run shows that the study works; its figures are not for quoting.
    [[ " $* " != *" --quick "* ]] || profile=demo
    if [[ " $* " != *" --list "* && " $* " != *" --report "* ]]; then
        if ((${#programs[@]} > 0)); then
            setup >&2
            # Guests with e1000 cards; a quick or short run of `capture` has none.
            if [[ $1 == e1000 || ($1 == capture && " $* " != *" --quick "* && " $* " != *" --short "*) ]]; then
                setup_guests >&2 || die "guests with e1000 cards need a QEMU of 10.1 or later"
            fi
            if [[ $profile == demo ]]; then build_demo "${programs[@]}" >&2; else build "$profile" "${programs[@]}" >&2; fi
        fi
        if ((EUID != 0)); then
            command -v sudo >/dev/null || die "studies make network namespaces, which takes root: run this as root"
            note "studies make network namespaces, which takes root: running it through sudo" >&2
            exec sudo env PYTHONPATH=tools "$study_python" -m study "${options[@]}" --programs "$(realpath "$target_dir/$profile")"
        fi
    fi
    export PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1
    exec "$study_python" -m study "${options[@]}" --programs "$(realpath -m "$target_dir/$profile")"
}

# The runner's own tests.
study_tests() {
    install_missing "${study_libraries[@]}"
    runner -m unittest discover --start-directory tools/study/tests --top-level-directory tools
}
