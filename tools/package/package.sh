# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev install and ./dev package. Sourced by ./dev, which sets target_dir.
# shellcheck disable=SC2154

# What packages are made with.
package_tools=(debhelper dh-python dpkg-dev python3)
# What is installed besides the programs of the demo, and libnetlib.
more_programs=(netvm-capture-client netvm-cni netvm-nf-simple-forward netvm-nf-l2-switch netvm-nf-payload-scan netvm-nf-load-balancer)
package_suites=(bookworm trixie noble)

package_usage() {
    cat <<'END'
usage: ./dev package [--profile release|demo] [--suite SUITE] [--version VERSION] [--test [--lintian]]

Builds netvm_*.deb, libnetlib0.1_*.deb and libnetlib-dev_*.deb in target/package/SUITE, for this machine's suite, or in a
fresh root of --suite (bookworm, trixie or noble). --profile demo takes less time to build, and its programs are slower.
--test tries the packages in a fresh root: installation, service, traffic, upgrade, removal; --lintian lets lintian check
them there.
END
}

# build_installed PROFILE: programs, libraries and header.
build_installed() {
    build "$1" "${demo_programs[@]}" "${more_programs[@]}"
    build_libnetlib "$1"
}

dev_install() {
    if [[ " $* " == *" --help "* ]]; then tools/package/install.sh --help && return; fi
    setup_demo
    build_installed release
    tools/package/install.sh --from "$target_dir/release" "$@"
}

this_suite() {
    # shellcheck source=/dev/null
    (. /etc/os-release && printf '%s\n' "${VERSION_CODENAME:-}")
}

# package_version: that of the sources, and newer with each commit.
package_version() {
    local commit
    commit=$(TZ=UTC git -c safe.directory='*' log -1 --date=format-local:%Y%m%d.%H%M%S --format=%cd.%h 2>/dev/null) ||
        commit=$(date -u +%Y%m%d.%H%M%S)
    printf '%s~%s\n' "$(release_version)" "$commit"
}

dev_package() {
    local profile=release suite version='' test=no lintian=no
    suite=$(this_suite)
    while (($# > 0)); do
        case $1 in
            --profile | --suite | --version)
                (($# >= 2)) || die "package: $1 needs a value"
                printf -v "${1#--}" '%s' "$2"
                shift 2
                ;;
            --test | --lintian) printf -v "${1#--}" yes && shift ;;
            --help) package_usage && return ;;
            *) package_usage >&2 && die "package: there is no option '$1'" ;;
        esac
    done
    [[ $profile == release || $profile == demo ]] || die "package: --profile is release or demo, not '$profile'"
    [[ " ${package_suites[*]} " == *" $suite "* ]] || die "packages are made for ${package_suites[*]}, not for '$suite'"
    version=${version:-$(package_version)}
    if [[ $suite == "$(this_suite)" ]]; then
        package_here "$profile" "$version"
    else
        package_in_root "$suite" "$profile" "$version"
    fi
    [[ $test == no ]] || package_test "$suite" "$lintian"
}

# package_here PROFILE VERSION: for the suite of this machine, with whose DPDK it is linked. The version names the
# suite, so that an upgrade of the system brings the package of the new one.
package_here() {
    local profile=$1 version out build suite
    suite=$(this_suite)
    version=$2~$suite
    setup_demo
    install_missing "${package_tools[@]}"
    build_installed "$profile"
    out=$target_dir/package/$suite
    build=$out/build
    rm -rf "$out"
    mkdir -p "$build"
    cp -r packaging/debian "$build/debian"
    cp packaging/netvmd.service "$build/debian/netvm.netvmd.service"
    cp packaging/netvm.sysusers "$build/debian/netvm.sysusers"
    printf 'netvm (%s) %s; urgency=medium\n\n  * %s\n\n -- %s  %s\n' "$version" "$suite" \
        "Built from the sources; their CHANGELOG.md says what netvm has." \
        "$(sed -n 's/^Maintainer: //p' packaging/debian/control)" "$(LC_ALL=C date -R)" >"$build/debian/changelog"
    step "packing" pack "$build" "$(realpath "$target_dir/$profile")"
    (cd "$out" && du -h -- *.deb)
}

# pack FOLDER PROGRAMS: debhelper's work in FOLDER.
pack() {
    NETVM_SOURCE=$PWD NETVM_BUILD=$2 DEB_BUILD_OPTIONS="nocheck noautodbgsym ${DEB_BUILD_OPTIONS:-}" \
        env -C "$1" dpkg-buildpackage --build=binary --no-sign --no-check-builddeps </dev/null >"$1/../packing.log" 2>&1 ||
        die "packing failed, see $1/../packing.log: $(tail -n 20 "$1/../packing.log")"
}

# package_in_root SUITE PROFILE VERSION: the same in a fresh root of another suite, with this machine's Rust.
package_in_root() {
    local suite=$1 root build
    ((EUID == 0)) || die "package --suite makes a root of its own, which takes root"
    build=$target_dir/package/$suite
    root=$build.root
    mkdir -p "$build"
    fresh_root "$suite" "$root" git ca-certificates || return "$no_root"
    in_root "$root" ./dev package --profile "$2" --version "$3" || return
    rm -rf "$build"
    mv "$root.target/package/$suite" "$build"
    rm -rf --one-file-system "$root"
}

# package_test SUITE LINTIAN: installs the packages in a fresh root, and uses them there.
package_test() {
    install_missing "${root_tools[@]}"
    ((EUID == 0)) || die "trying the packages in a fresh root takes root"
    find_archive "$1"
    step "packages in a fresh root of $1" env NETVM_MMDEBSTRAP="${archive[*]}" tools/package/test.sh "$1" "$target_dir/package/$1" "$2"
}

# check_packages: packages of each suite, made and tried. A suite whose archive cannot be reached is skipped.
check_packages() {
    local suite failed=0 status
    for suite in "${package_suites[@]}"; do
        status=0
        ./dev package --suite "$suite" --test --lintian || status=$?
        if ((status == no_root)); then
            printf 'SKIP: packages for %s: no root can be made of it here\n' "$suite"
        elif ((status > 0)); then
            failed=1
        fi
    done
    return "$failed"
}
