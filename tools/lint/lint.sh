# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev lint: everything that can be checked without running the code. Sourced by ./dev.

# Exceptions to the house rules: bindings of DPDK, which bindgen makes, and fuzz targets, of which cargo-fuzz wants one
# flat folder.
generated=crates/dpdk-sys/src/bindings/mod.rs
fuzz_targets=fuzz/fuzz_targets
# Sleeps, and assertions about elapsed time, that tests may have: numbers that only go down.
most_sleeps=126
most_timings=24
# Commits after this one have subjects that name the component and fit a line.
subjects_since=243168a7a22a

lint() {
    local -a failed=()
    local name
    setup
    check_target_dir
    step "formatting" cargo fmt --all --check </dev/null || failed+=(formatting)
    step "house rules" house_rules || failed+=("house rules")
    step "licences" licences_are_said || failed+=(licences)
    step "no build output" no_build_output || failed+=("no build output")
    step "retired words" retired_words || failed+=("retired words")
    step "links of the docs" doc_links || failed+=("links of the docs")
    step "columns of comments" short_comments || failed+=("columns of comments")
    step "arguments" few_arguments || failed+=(arguments)
    step "sleeps in tests" few_sleeps || failed+=("sleeps in tests")
    step "module cycles" python3 tools/lint/module_cycles.py crates/*/src nf/*/src || failed+=("module cycles")
    step "tests that never run" python3 tools/lint/untested.py crates/*/Cargo.toml nf/*/Cargo.toml || failed+=("tests that never run")
    step "commit subjects" commit_subjects || failed+=("commit subjects")
    step "shellcheck" shell_scripts || failed+=(shellcheck)
    step "Cargo.lock is current" lock_is_current || failed+=("Cargo.lock")
    step "versions" versions_agree || failed+=(versions)
    step "parsers in the packet path" no_parser_in_the_engine || failed+=("parsers in the packet path")
    step "kinds of ports" kinds_in_two_tables || failed+=("kinds of ports")
    step "parts of the engine" parts_own_their_state || failed+=("parts of the engine")
    step "clippy" cargo clippy --workspace --all-targets --keep-going -- -D warnings </dev/null || failed+=(clippy)
    step "docs" env RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps </dev/null || failed+=(docs)
    if command -v cargo-deny >/dev/null; then
        step "cargo deny" cargo deny check licenses bans sources </dev/null || failed+=("cargo deny")
        check_advisories || failed+=("advisories")
    else
        printf 'SKIP: cargo deny: not installed; "./dev setup --release" installs it\n'
    fi
    for name in "${failed[@]}"; do printf 'FAILED: %s\n' "$name"; done
    ((${#failed[@]} == 0)) || return 1
    note "lint is clean"
}

# Files of ours that match the patterns, also when the checkout belongs to another user.
our_files() {
    git -c safe.directory='*' ls-files --cached --others --exclude-standard --deduplicate -- "$@" |
        while read -r file; do [[ ! -f $file ]] || printf '%s\n' "$file"; done
}

# check_advisories: against the database of RustSec, where that can be had.
check_advisories() {
    if ! cargo deny fetch db </dev/null >/dev/null 2>&1; then
        printf 'SKIP: advisories: the database of RustSec cannot be fetched\n'
        return
    fi
    step "advisories" cargo deny check advisories </dev/null
}

house_rules() {
    local status=0 file lines count folder
    local -a sources
    mapfile -t sources < <(our_files '*.rs' '*.c' '*.h' '*.sh' '*.py' '*.awk' '*.js' '*.css' '*.html' dev .ci/run)
    for file in "${sources[@]}"; do
        [[ $file != "$generated" ]] || continue
        lines=$(grep -vc 'SPDX-License-Identifier' "$file")
        if ((lines > 400)); then
            printf '%s: %d lines, at most 400: split it\n' "$file" "$lines"
            status=1
        fi
    done
    mapfile -t sources < <(our_files '*.rs' '*.c' '*.h')
    while read -r count folder; do
        if ((count > 9)); then
            printf '%s: %d sources, at most 9: sort them into folders\n' "$folder" "$count"
            status=1
        fi
    done < <(printf '%s\n' "${sources[@]%/*}" | grep -vx "$fuzz_targets" | sort | uniq -c)
    if grep -nHE '^\s*([^/[:space:]].*)?\b(todo|unimplemented|dbg)!|\b(TODO|FIXME)\b' -- /dev/null "${sources[@]}"; then
        printf 'unfinished work above: finish it, or leave it out and say so in the documentation\n'
        status=1
    fi
    return "$status"
}

# Each source says its licence in its first two lines (SPDX 3, annex "Using SPDX short identifiers in source files").
licences_are_said() {
    local file status=0
    while read -r file; do
        [[ $(head -n 2 "$file") != *"SPDX-License-Identifier: Apache-2.0"* ]] || continue
        printf '%s: no "SPDX-License-Identifier: Apache-2.0" in the first two lines\n' "$file"
        status=1
    done < <(our_files '*.rs' '*.c' '*.h' '*.cc' '*.hh' '*.go' '*.sh' '*.py' '*.awk' '*.js' '*.css' '*.html' dev .ci/run)
    return "$status"
}

# What a build makes is never committed: cargo marks its folders, and compilers name what they make.
no_build_output() {
    ! git -c safe.directory='*' ls-files -- '*CACHEDIR.TAG' '*.rlib' '*.rmeta' '*.o' '*.a' '*.so' | grep . ||
        { printf 'build output above: git rm --cached it, and ignore its folder\n' && return 1; }
}

short_comments() {
    local -a sources
    mapfile -t sources < <(our_files '*.rs' '*.c' '*.h' '*.go' '*.sh' '*.py' '*.awk' '*.toml' '*.js' \
        '*.service' dev .ci/run | grep -vxF "$generated")
    python3 tools/lint/columns.py "${sources[@]}"
}

few_arguments() {
    local -a sources
    mapfile -t sources < <(our_files '*.rs' | grep -vxF "$generated")
    python3 tools/lint/arguments.py "${sources[@]}"
}

few_sleeps() {
    local -a sources
    mapfile -t sources < <(our_files 'crates/*.rs' 'nf/*.rs')
    python3 tools/lint/sleeps.py "$most_sleeps" "$most_timings" "${sources[@]}"
}

doc_links() {
    local -a pages
    mapfile -t pages < <(our_files '*.md')
    python3 tools/lint/doc_links.py "${pages[@]}"
}

# Words that tools/lint/words.txt retires, where they are used again.
retired_words() {
    local status=0 word instead elsewhere found
    local -a sources
    mapfile -t sources < <(our_files '*.rs' '*.c' '*.h' '*.md' '*.toml' '*.sh' dev | grep -v '^CHANGELOG.md$')
    while IFS=$'\t' read -r word instead elsewhere; do
        [[ -n $word && $word != '#'* ]] || continue
        found=$(grep -nHwE -- "$word" /dev/null "${sources[@]}" | grep -vE -- "${elsewhere:-^$}" || true)
        [[ -n $found ]] || continue
        printf '%s\nretired word above: say "%s" instead (tools/lint/words.txt)\n' "$found" "$instead"
        status=1
    done <tools/lint/words.txt
    return "$status"
}

# `component: imperative subject` in at most 72 characters, for each commit that came after the rule.
commit_subjects() {
    local subject status=0
    local -a git=(git -c safe.directory='*')
    if ! "${git[@]}" cat-file -e "$subjects_since^{commit}" 2>/dev/null; then
        printf 'SKIP: commit subjects: the history does not reach back to %s\n' "$subjects_since"
        return 0
    fi
    while read -r subject; do
        if ((${#subject} > 72)) || [[ ! $subject =~ ^[a-z0-9_./,\ -]+:\ [a-z] ]]; then
            printf '%s\n' "$subject"
            status=1
        fi
    done < <("${git[@]}" log --no-merges --format=%s "$subjects_since..HEAD")
    ((status == 0)) || printf 'commit subjects above: "component: imperative subject", at most 72 characters\n'
    return "$status"
}

shell_scripts() {
    local -a scripts
    command -v shellcheck >/dev/null || {
        printf 'SKIP: shellcheck: not installed\n'
        return 0
    }
    mapfile -t scripts < <(our_files dev .ci/run '*.sh')
    shellcheck -x "${scripts[@]}"
}

lock_is_current() {
    local manifest
    for manifest in Cargo.toml fuzz/Cargo.toml; do
        cargo metadata --locked --format-version 1 --manifest-path "$manifest" >/dev/null </dev/null || return 1
    done
}

# The engine takes what it runs from netvm-model: no crate that reads files of users, and none that draws their errors.
no_parser_in_the_engine() {
    local tree found
    tree=$(cargo tree --locked --package netvm-engine --edges normal,no-proc-macro --prefix none </dev/null) || return 1
    found=$(grep -E '^(netvm-(config|policy-import)|toml[a-z_]*|winnow|miette) ' <<<"$tree" | sort -u || true)
    [[ -n $found ]] || return 0
    printf '%s\nlinked by netvm-engine: it takes its types from netvm-model\n' "$found"
    return 1
}

# A new kind of port is three files: a row in the model's table, a row in the engine's, and its own file. Everything
# else asks the model's table (`KindInfo`, `own_keys`). Two files make ports of a kind; demo has kinds of its own.
kinds_in_two_tables() {
    local found
    local -a sources
    mapfile -t sources < <(our_files 'crates/*/src/*.rs' 'nf/*/src/*.rs' |
        grep -vE '^crates/(bench|demo)/|/tests(\.rs$|/)|^crates/(model/src/port|engine/src/interface)/' |
        grep -vE '^crates/(model/src/host/(punts|pairs)|netvmd/src/offline/replay)\.rs$')
    found=$(grep -nHE '\bPortKind::[A-Z]' -- /dev/null "${sources[@]}" || true)
    [[ -n $found ]] || return 0
    printf '%s\nkinds of ports above: ask PortKind::info instead (crates/model/src/port/info.rs)\n' "$found"
    return 1
}

# Only the order of things, and the calls that pass on to one part, reach all parts of the engine: a part has a struct
# of its own.
parts_own_their_state() {
    local found
    local -a sources
    mapfile -t sources < <(our_files 'crates/engine/src/*.rs' | grep -vE '^crates/engine/src/manager/(mod|apply|api|service)\.rs$')
    found=$(grep -nHE '^impl(<[^>]*>)? (.* for )?(super::)*Engine\b' -- /dev/null "${sources[@]}" || true)
    [[ -n $found ]] || return 0
    printf '%s\nimpl Engine above: give the part a struct, and pass it what it needs of others\n' "$found"
    return 1
}
