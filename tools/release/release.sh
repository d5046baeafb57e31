# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev release: what a release consists of, made from the last commit. Sourced by ./dev, which sets target_dir.
# shellcheck disable=SC2154

release_tools=(cargo-cyclonedx)

release_usage() {
    cat <<'END'
usage: ./dev release [--dry-run] [--key KEY]
       ./dev release --set-version X.Y.Z

Makes the release of the version in Cargo.toml from the last commit, in target/release-X.Y.Z: source archive, packages of
each suite, lists of components (SBOM, CycloneDX), checksums, and, with --key, signatures by that OpenPGP key. Then it tags
the commit vX.Y.Z. --dry-run makes packages of this machine's suite only, takes an unfinished CHANGELOG.md, and tags nothing.

--set-version writes the version wherever it stands; commit that, with the section of CHANGELOG.md.
END
}

# release_version: that of the workspace, from which all others follow.
release_version() {
    awk -F'"' '/^version/ { print $2; exit }' Cargo.toml
}

# library_version VERSION: the part that is in the name of libnetlib. Before 1.0, each 0.x is incompatible with others.
library_version() {
    case $1 in
        0.*) printf '%s\n' "${1%.*}" ;;
        *) printf '%s\n' "${1%%.*}" ;;
    esac
}

# versions_agree: the version stands in Cargo.toml; a few files that cargo does not read repeat it.
versions_agree() {
    local version library status=0
    version=$(release_version)
    library=$(library_version "$version")
    grep -qx "VERSION = \"$version\"" bindings/python/netvm/abi.py ||
        { printf 'bindings/python/netvm/abi.py: VERSION is not %s, as in Cargo.toml\n' "$version" && status=1; }
    grep -qx "Package: libnetlib$library" packaging/debian/control ||
        { printf 'packaging/debian/control: no package libnetlib%s, as the version in Cargo.toml wants\n' "$library" && status=1; }
    [[ -e packaging/debian/libnetlib$library.install ]] ||
        { printf 'packaging/debian/libnetlib%s.install: not there\n' "$library" && status=1; }
    ((status == 0)) || printf '"./dev release --set-version %s" repairs this\n' "$version"
    return "$status"
}

# set_version VERSION: in every file that has it.
set_version() {
    local version=$1 old new
    [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "release: a version is three numbers, such as 0.2.0, not '$version'"
    old=$(library_version "$(release_version)")
    new=$(library_version "$version")
    sed -i "0,/^version = /s/^version = .*/version = \"$version\"/" Cargo.toml
    sed -i "s/^VERSION = .*/VERSION = \"$version\"/" bindings/python/netvm/abi.py
    if [[ $old != "$new" ]]; then
        git mv "packaging/debian/libnetlib$old.install" "packaging/debian/libnetlib$new.install"
        git grep -lzF "libnetlib$old" -- packaging tools/package docs/how-to bindings examples |
            xargs -0 sed -i "s/libnetlib${old//./\\.}/libnetlib$new/g"
    fi
    cargo update --quiet --workspace
    cargo update --quiet --workspace --manifest-path fuzz/Cargo.toml
}

# changelog_is_ready VERSION: its section is there, and has a date.
changelog_is_ready() {
    grep -qE "^## \[${1//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md
}

# source_archive VERSION FILE: one commit gives the same bytes on every machine.
source_archive() {
    git -c safe.directory='*' -c core.autocrlf=false -c tar.umask=0022 archive --format=tar --prefix="netvm-$1/" HEAD |
        gzip --no-name --best >"$2"
}

# component_lists SOURCE FOLDER: a CycloneDX list (SBOM) for each program and library that packages contain, by the
# sources unpacked in SOURCE.
component_lists() {
    local package list epoch
    epoch=$(git -c safe.directory='*' log -1 --format=%ct)
    (cd "$1" && SOURCE_DATE_EPOCH=$epoch cargo cyclonedx --quiet --format json </dev/null) || return
    for package in netlib-c "${demo_programs[@]}" "${more_programs[@]}"; do
        list=$(find "$1/crates" "$1/nf" -name "$package.cdx.json")
        [[ -n $list ]] || { printf 'no list of the components of %s\n' "$package" >&2 && return 1; }
        # The folder of the sources is in the names of our own crates.
        sed "s|file://$1/|file:///|g" "$list" >"$2/$package.cdx.json"
    done
}

# signed_checksums FOLDER KEY
signed_checksums() {
    local file
    (cd "$1" && sha256sum -- * >SHA256SUMS) || return
    [[ -n $2 ]] || return 0
    for file in "$1"/SHA256SUMS "$1"/*.tar.gz; do
        gpg --batch --yes --local-user "$2" --armor --detach-sign "$file" || return
    done
}

dev_release() {
    local dry_run=no key='' version out again source suite
    while (($# > 0)); do
        case $1 in
            --dry-run) dry_run=yes && shift ;;
            --key) (($# >= 2)) || die "release: --key needs a key" && key=$2 && shift 2 ;;
            --set-version) (($# == 2)) || die "release: --set-version needs a version, and nothing else" && set_version "$2" && return ;;
            --help) release_usage && return ;;
            *) release_usage >&2 && die "release: there is no option '$1'" ;;
        esac
    done
    setup
    setup_cargo_tools "${release_tools[@]}" || die "release: lists of components need cargo-cyclonedx"
    version=$(release_version)
    out=$target_dir/release-$version
    versions_agree || die "release: the version is not the same everywhere"
    [[ -z $(git -c safe.directory='*' status --porcelain) ]] || die "release: there are changes that are not committed"
    if ! changelog_is_ready "$version"; then
        [[ $dry_run == yes ]] || die "release: CHANGELOG.md has no section '## [$version] - YEAR-MONTH-DAY'"
        note "CHANGELOG.md has no section '## [$version] - YEAR-MONTH-DAY' yet"
    fi
    [[ $dry_run == yes ]] || ! git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null || die "release: v$version is there already"

    rm -rf "$out"
    mkdir -p "$out"
    again=$(mktemp -d)
    step "source archive" source_archive "$version" "$out/netvm-$version.tar.gz"
    # Made again from another clone, to show that it is the commit that decides.
    git -c safe.directory='*' clone --quiet . "$again/clone"
    (cd "$again/clone" && source_archive "$version" "$again/archive")
    cmp "$out/netvm-$version.tar.gz" "$again/archive" || die "release: two archives of one commit differ"
    tar -xzf "$again/archive" -C "$again"
    source=$again/netvm-$version
    step "lists of components" component_lists "$source" "$out" || die "release: no lists of components"
    for suite in "${package_suites[@]}"; do
        if [[ $dry_run == no ]]; then
            dev_package --suite "$suite" --version "$version" || die "release: no packages of $suite"
        elif [[ $suite == "$(this_suite)" ]]; then
            dev_package --profile demo --version "$version" || die "release: no packages of $suite"
        else
            continue
        fi
        cp "$target_dir/package/$suite"/*.deb "$out/"
    done
    rm -rf "$again"
    step "checksums" signed_checksums "$out" "$key" || die "release: no checksums"
    if [[ $dry_run == no ]]; then
        if [[ -n $key ]]; then
            git tag --sign --local-user "$key" --message "netvm $version" "v$version"
        else
            git tag --annotate --message "netvm $version" "v$version"
        fi
        note "tagged v$version: push the tag, and publish what is in $out"
    fi
    (cd "$out" && cat SHA256SUMS)
    note "netvm $version is in $out"
}
