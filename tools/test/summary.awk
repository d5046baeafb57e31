# SPDX-License-Identifier: Apache-2.0
# Totals of everything that `cargo test` and Python's unittest printed: awk -v count=passed|failed|skipped -f
# test-summary.awk LOG
#
# A test that finds it cannot run here prints "SKIP: why" and returns, so libtest counts it as passed; here it counts
# as skipped instead, once however often it says so. Ignored tests count as skipped too.

/^successes:$/ { passing = 1 }
/^failures:$/ { passing = 0 }
/^---- .* ----$/ { block = 1; counted = 0 }

/^(test .* \.\.\. )?SKIP:/ {
    if (!block) {
        skips++ # said past libtest's capture
    } else if (passing && !counted) {
        skips++
        counted = 1
    }
}

/^test result: / {
    block = passing = 0
    for (i = 4; i < NF; i++) {
        if ($(i + 1) == "passed;") passed += $i
        if ($(i + 1) == "failed;") failed += $i
        if ($(i + 1) == "ignored;") ignored += $i
    }
}

# unittest: "Ran 42 tests in 1.0s", then "OK" or "FAILED", either with "(failures=1, errors=2, skipped=3)".
/^Ran [0-9]+ tests? in / {
    ran = $2
}
ran != "" && /^(OK|FAILED)( \(.*\))?$/ {
    wrong = 0
    parts = split($0, part, /[(), ]+/)
    for (i = 2; i <= parts; i++) {
        split(part[i], pair, "=")
        if (pair[1] == "failures" || pair[1] == "errors") wrong += pair[2]
        if (pair[1] == "skipped") { ignored += pair[2]; ran -= pair[2] }
    }
    failed += wrong
    passed += ran - wrong
    ran = ""
}

# A test process that died printed no result; 101 is libtest's status for failed tests, which it did count.
/^  process didn't exit successfully: / && !/\(exit status: 101\)/ { failed++ }

END {
    if (count == "passed") print passed - skips
    if (count == "failed") print failed + 0
    if (count == "skipped") print skips + ignored + 0
}
