# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev test: every test there is, and one line of totals at the end. Sourced by ./dev, which sets target_dir.
# shellcheck disable=SC2154

# Crates with unsafe code whose tests Miri can run: they map no memory and open no socket.
miri_packages=(netvm-ring)

# A test that hangs must not hang CI; at a terminal there is Ctrl-C.
limit=()
[[ ${CI:-} != true ]] || limit=(timeout -k 10 2700)

test_log=
test_failures=()
test_skips=0
# Tests that failed beside others and passed alone. Those that tools/test/flaky.txt does not name fail the run.
flaky=()
# With more failures than these, the machine is not to blame.
most_flaky=8

# suite NAME COMMAND...: a step whose output is shown and also kept for the totals.
suite() {
    local name=$1 before after
    shift
    before=$(awk -v count=failed -f tools/test/summary.awk "$test_log")
    if step "$name" logged "$@"; then return; fi
    after=$(awk -v count=failed -f tools/test/summary.awk "$test_log")
    # A build that broke leaves no failed test behind: it counts as one itself.
    if ((after == before)); then test_failures+=("$name"); fi
}

logged() {
    "$@" 2>&1 </dev/null | tee -a "$test_log"
}

# again_alone: runs the tests that failed once more, one at a time. Many wait for real guests, daemons and timers, so a
# machine that others use can have one fail beside others; it is named at the end in any case.
again_alone() {
    local -a names=()
    mapfile -t names < <(awk -f tools/test/failed-tests.awk "$test_log")
    ((${#names[@]} > 0 && ${#names[@]} <= most_flaky)) || return 0
    note "failed, so run again alone: ${names[*]}"
    if "${limit[@]}" cargo test --no-fail-fast --workspace --lib --bins --tests -- \
        --show-output --test-threads 1 --exact "${names[@]}" 2>&1 </dev/null | tee "$test_log.alone"; then
        flaky=("${names[@]}")
    fi
}

skip() {
    printf 'SKIP: %s\n' "$*"
    test_skips=$((test_skips + 1))
}

# Packages with a loom model, found by what they declare.
loom_packages() {
    local manifest
    while read -r manifest; do
        awk -F'"' '/^name/ { print $2; exit }' "$manifest"
    done < <(grep -l 'cfg(loom)' crates/*/Cargo.toml)
}

# autogroups_off: Linux 6.18 can starve what is outside of an autogroup (sched(7)), a process that exits among it,
# beside a thread that polls inside of one: tests that kill guests then hang for minutes. The shell's exit turns them on
# again.
autogroups_off() {
    local file=/proc/sys/kernel/sched_autogroup_enabled
    [[ -w $file && $(<"$file") == 1 ]] || return 0
    # shellcheck disable=SC2064 # The name as it is now.
    trap "echo 1 >'$file'" EXIT
    echo 0 >"$file"
}

# The engines of tests have so many workers. Tests that need another number say so themselves.
test_workers() {
    if [[ ${CI:-} == true ]]; then echo 2; else echo 1; fi
}

run_tests() {
    local start=$SECONDS
    export NETVM_TEST_WORKERS=${NETVM_TEST_WORKERS:-$(test_workers)}
    check_room 8 debug
    setup
    autogroups_off
    # Without a network, tests of e1000 cards are skipped.
    setup_guests || true
    setup_peers "${test_peers[@]}" || true
    check_target_dir
    mkdir -p "$target_dir"
    test_log=$target_dir/dev-test.log
    rm -f "$test_log.alone"
    : >"$test_log"
    if (($# > 0)); then chosen_tests "$@"; else all_tests; fi
    test_totals "$start"
}

# --show-output, so that the SKIP lines of tests that pass are seen.
chosen_tests() {
    local -a build=()
    local argument
    for argument in "$@"; do
        [[ $argument != -- ]] || break
        build+=("$argument")
    done
    shift "${#build[@]}"
    [[ $# -eq 0 ]] || shift
    suite "tests" "${limit[@]}" cargo test --no-fail-fast --all-targets "${build[@]}" -- --show-output "$@"
}

all_tests() {
    local -a loom=()
    local package
    # Without --all-targets, which makes harnesses of the examples: tests put some into guests, as programs.
    if ! step "build the tests" cargo test --workspace --no-run </dev/null; then
        test_failures+=("build the tests")
        return
    fi
    # Documentation tests with the others: alone they would have some libraries built anew, with fewer features.
    suite "tests" "${limit[@]}" cargo test --no-fail-fast --workspace -- --show-output
    again_alone
    suite "study runner" study_tests

    while read -r package; do loom+=(-p "$package"); done < <(loom_packages)
    suite "loom" "${limit[@]}" env RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" CARGO_PROFILE_RELEASE_LTO=off \
        cargo test --release --lib --target-dir target-loom "${loom[@]}" -- --show-output

    if has_nightly miri rust-src; then
        suite "miri" "${limit[@]}" env PROPTEST_CASES=4 MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation" \
            cargo +nightly miri test --lib "${miri_packages[@]/#/--package=}" -- --show-output
    else
        skip "miri: there is no nightly compiler with miri and rust-src; './dev setup --nightly' installs them"
    fi
}

# What failed tests printed, as much of it as shows the cause.
failures_in_detail() {
    local log=$1 name
    while read -r name; do
        awk -v head="---- $name stdout ----" '
            $0 == head { inside = 1 }
            inside && /^(---- |failures:|successes:)/ && $0 != head { exit }
            inside && ++lines <= 60' "$log"
    done < <(awk -f tools/test/failed-tests.awk "$log")
}

test_totals() {
    print_totals "$1" | tee "$target_dir/dev-test.totals"
    return "${PIPESTATUS[0]}"
}

print_totals() {
    local passed failed skipped name
    passed=$(awk -v count=passed -f tools/test/summary.awk "$test_log")
    failed=$(awk -v count=failed -f tools/test/summary.awk "$test_log")
    skipped=$(awk -v count=skipped -f tools/test/summary.awk "$test_log")
    failures_in_detail "$test_log"
    if [[ -s $test_log.alone ]]; then failures_in_detail "$test_log.alone"; fi
    note "all of it: $((SECONDS - $1)) s"
    for name in "${test_failures[@]}"; do printf 'FAILED: %s\n' "$name"; done
    failed=$((failed + ${#test_failures[@]}))
    for name in "${flaky[@]}"; do
        if grep -q "^$name"$'\t' tools/test/flaky.txt; then
            printf 'FLAKY: %s failed beside other tests and passed alone, as tools/test/flaky.txt knows\n' "$name"
            passed=$((passed + 1))
            failed=$((failed - 1))
        else
            printf 'FAILED: %s failed beside other tests and passed alone: mend what it shares with them\n' "$name"
        fi
    done
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$((skipped + test_skips))"
    ((failed == 0))
}
