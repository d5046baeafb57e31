# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev bench compare: a benchmark of this checkout beside the same one of another revision. Sourced by ./dev, which
# sets target_dir.
# shellcheck disable=SC2154

# bench_compare REVISION NAME [OPTIONS]: builds the other revision in a folder of its own, and runs both in turns.
bench_compare() {
    [[ $# -ge 2 && $1 != -* && $2 != -* ]] ||
        die "compare needs a revision and a benchmark: ./dev bench compare REV NAME [--rounds N] [--least RATIO] [-- OPTIONS]"
    local revision source build
    revision=$(git rev-parse --verify --quiet --short=12 "$1^{commit}") || die "'$1' is no revision of this repository"
    shift
    build=$(realpath -m "$target_dir/compare/$revision")
    source=$build/source
    if [[ ! -x $build/release/netvm-bench ]]; then
        mkdir -p "$source"
        git archive "$revision" | tar -x -C "$source"
        (cd "$source" && step "release build of $revision" \
            env CARGO_TARGET_DIR="$build" cargo build --release --package netvm-bench </dev/null) >&2
    fi
    exec "$target_dir/release/netvm-bench" compare "$build/release/netvm-bench" "$@"
}
