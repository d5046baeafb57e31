# shellcheck shell=bash
# ./dev install and ./dev package. Sourced by ./dev, which sets target_dir.
# shellcheck disable=SC2154

# What packages are made with, and what tries them in a fresh root.
package_tools=(debhelper dh-python dpkg-dev python3)
package_test_tools=(mmdebstrap debian-archive-keyring)
# What is installed besides the programs of the demo, and libnetlib.
more_programs=(netvm-capture-client netvm-cni netvm-nf-simple-forward netvm-nf-l2-switch netvm-nf-payload-scan netvm-nf-load-balancer)
package_suites=(bookworm trixie noble)
# The exit status of `./dev package` when no root of the suite can be made.
no_root=75

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

# find_archive SUITE: sets archive, mmdebstrap's options for the archive of SUITE. Debian 12 has no package with
# Ubuntu's keys: they come from Ubuntu's, whose content is known. DPDK is in universe there.
archive=()
find_archive() {
    local file=/usr/share/keyrings/ubuntu-archive-keyring.gpg work=$target_dir/package/keyring
    local name=ubuntu-keyring_2023.11.28.1_all.deb sum=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
    archive=()
    [[ $1 == noble ]] || return 0
    archive=("--components=main,universe")
    [[ ! -e $file ]] || return 0
    mkdir -p "$work"
    if [[ ! -e $work$file ]]; then
        curl --fail -sS --retry 2 --output "$work/$name" "http://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/$name" ||
            die "cannot get the keys of Ubuntu's archive: is there a network?"
        sha256sum --check --quiet <<<"$sum  $work/$name" || die "$work/$name is not what it should be: remove it and try again"
        dpkg-deb --extract "$work/$name" "$work"
    fi
    archive+=(--keyring="$(realpath "$work$file")")
}

# package_in_root SUITE PROFILE VERSION: the same in a fresh root of another suite, with this machine's Rust.
package_in_root() {
    local suite=$1 root build home=${CARGO_HOME:-$HOME/.cargo}
    ((EUID == 0)) || die "package --suite makes a root of its own, which takes root"
    install_missing "${package_test_tools[@]}"
    find_archive "$suite"
    build=$target_dir/package/$suite
    root=$build.root
    rm -rf "$root"
    mkdir -p "$build" "$root.target"
    # shellcheck disable=SC2016 # mmdebstrap's shell has the root as $1
    step "fresh root of $suite" mmdebstrap --quiet --variant=apt "${archive[@]}" --aptopt='APT::Install-Recommends "false"' --include=git,ca-certificates \
        --customize-hook='cp -L /etc/resolv.conf "$1/etc/resolv.conf"' --skip=cleanup/apt "$suite" "$root" </dev/null || return "$no_root"
    mkdir -p "$root"/{src,cargo,rustup,build}
    # The mounts end with the namespace.
    # shellcheck disable=SC2016 # the inner shell's arguments
    unshare --mount --fork sh -c '
        root=$1 && mount --make-rprivate / && mount --rbind "$2" "$root/src" && mount --rbind "$3" "$root/cargo" &&
        mount --rbind "$4" "$root/rustup" && mount --rbind "$5" "$root/build" && mount -t proc proc "$root/proc" &&
        mount --rbind /dev "$root/dev" && shift 5 &&
        exec chroot "$root" env -C /src HOME=/root CARGO_HOME=/cargo RUSTUP_HOME=/rustup CARGO_TARGET_DIR=/build "$@"' sh \
        "$root" "$PWD" "$home" "${RUSTUP_HOME:-$HOME/.rustup}" "$(realpath "$root.target")" \
        ./dev package --profile "$2" --version "$3" || return
    rm -rf "$build"
    mv "$root.target/package/$suite" "$build"
    rm -rf --one-file-system "$root"
}

# package_test SUITE LINTIAN: installs the packages in a fresh root, and uses them there.
package_test() {
    install_missing "${package_test_tools[@]}"
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
