# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev fuzz [TARGET] [SECONDS]. Sourced by ./dev. What it finds stays in target-fuzz, out of the checkout's files.

fuzz() {
    local target=${1:-} seconds=${2:-30}
    local -a targets
    [[ $seconds =~ ^[0-9]+$ ]] || die "fuzz takes a target and a number of seconds, not '$seconds'"
    setup
    setup_nightly rust-src
    if ! cargo fuzz --version >/dev/null 2>&1; then
        step "cargo-fuzz" cargo install --locked cargo-fuzz </dev/null ||
            die "cargo could not install cargo-fuzz: its messages above say why (no network?)"
    fi
    mapfile -t targets < <(cargo +nightly fuzz list)
    ((${#targets[@]} > 0)) || die "cargo fuzz finds no target in fuzz/"
    if [[ -n $target ]]; then
        [[ " ${targets[*]} " == *" $target "* ]] || die "there is no fuzz target '$target'; there are: ${targets[*]}"
        targets=("$target")
    fi
    step "examples to begin from" fuzz_examples ||
        die "a fuzz target fails on examples or mutations of them: './dev test -p netvm-fuzz-targets' says which"
    for target in "${targets[@]}"; do
        step "fuzz $target for $seconds s" fuzz_one "$target" "$seconds"
    done
}

# The examples of the tests: libFuzzer alone takes long to find TOML or pcapng.
fuzz_examples() {
    NETVM_FUZZ_CORPUS=$PWD/target-fuzz/corpus cargo test --quiet -p netvm-fuzz-targets --test bodies </dev/null
}

fuzz_one() {
    local found=$PWD/target-fuzz/found/$1
    local -a corpus=("$PWD/target-fuzz/corpus/$1")
    mkdir -p "${corpus[0]}" "$found"
    # The first directory takes what is new; a corpus kept with the sources is only read.
    [[ ! -d fuzz/corpus/$1 ]] || corpus+=("$PWD/fuzz/corpus/$1")
    cargo +nightly fuzz run --target-dir "$PWD/target-fuzz" "$1" "${corpus[@]}" -- \
        -max_total_time="$2" -artifact_prefix="$found/" </dev/null
}
