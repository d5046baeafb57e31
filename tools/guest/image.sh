#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A small bootable image for a VM, of the distribution's kernel, busybox and one program: see --help.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

die() {
    printf 'guest-image: %s\n' "$*" >&2
    exit 1
}

usage() {
    cat <<'END'
usage: tools/guest/image.sh FOLDER [--drivers] [--module NAME]... [--file SOURCE:PLACE]... [--e1000-csb] [--disk] [PROGRAM [ARGUMENT]...]

Writes FOLDER/kernel and FOLDER/initrd, an initramfs that starts PROGRAM with its arguments (and those after "--" on the
kernel's command line) and switches the machine off when it ends; without PROGRAM it starts a shell on the console.

  --drivers             take the kernel with drivers of real devices, such as e1000: some 70 MB more to download
  --module NAME         load this kernel module, and those that it needs, before
  --file SOURCE:PLACE   put a file into the image; a shared library's or a program's libraries come with it
  --e1000-csb           build the e1000 driver with a communication status block (tools/guest/e1000/build-driver.sh), once, and
                        put it into the image as /modules/e1000-csb.ko; it is not loaded
  --disk                besides, write both to FOLDER/disk.img, a raw disk with a boot loader (SYSLINUX)

The kernel is this machine's distribution's for virtual machines, downloaded with apt-get once and kept in
FOLDER/../guest-kernel (with --drivers, guest-kernel-drivers); NETVM_GUEST_KERNEL=FOLDER names an unpacked kernel package to take in its place.
END
}

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || die "$tool is missing: ./dev setup installs what is needed"
    done
}

# The package with the smallest kernel that there is for VMs: Debian's, or Ubuntu's.
kernel_package() {
    local name names=(linux-image-cloud-amd64 linux-image-amd64 linux-image-virtual)
    [[ $drivers == no ]] || names=(linux-image-amd64 linux-image-generic)
    for name in "${names[@]}"; do
        # An empty package that depends on the newest one.
        apt-cache depends --important "$name" 2>/dev/null |
            sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1 | grep . && return
    done
    die "apt-get knows no kernel package (linux-image-cloud-amd64, linux-image-virtual): run apt-get update, or set" \
        "NETVM_GUEST_KERNEL to the folder of an unpacked one"
}

# Drivers that no image takes: half of the kernel's size.
unused=(drivers/{media,gpu,infiniband,iio,staging,isdn,hwmon,input,mtd,video} drivers/net/wireless sound)

# fetch NAME...: downloads packages into the current folder and unpacks them, without drivers that no image takes.
fetch() {
    # apt-get's own user could not write here: as root it says so, and does it all the same.
    apt-get download -q "$@" >download.log 2>&1 || die "apt-get download $*: $(tail -n 3 download.log)"
    local package
    mkdir -p unpacked
    for package in ./*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C unpacked "${unused[@]/#/--exclude=*/kernel/}"
        rm "$package"
    done
}

# Unpacks the kernel into $1, once; a second one waits for the first.
fetch_kernel() {
    local into=$1 name modules work
    need apt-get apt-cache dpkg-deb flock
    mkdir -p "$(dirname "$into")"
    exec 9>"$into.lock"
    flock 9
    [[ ! -e $into/ready ]] || return 0
    name=$(kernel_package)
    work=$(mktemp -d "$into.XXXXXX")
    modules=${name/linux-image-/linux-modules-}
    (
        cd "$work"
        fetch "$name"
        # Ubuntu's modules are in a package of their own.
        [[ -d unpacked/lib/modules || -d unpacked/usr/lib/modules ]] || fetch "$modules"
        chmod -R u+rwX,go+rX .
        printf '%s\n' "$name" >ready
    )
    rm -rf "$into"
    mv -T "$work" "$into"
}

# find_module NAME: its file.
find_module() {
    local pattern=${1//[-_]/[-_]}
    find "$kernel" \( -name "$pattern.ko" -o -name "$pattern.ko.*" \) -print -quit
}

# add_module NAME: copies a module behind those that it needs, and notes it in the order in which they are to be loaded.
add_module() {
    local name=${1//-/_} file to needs need
    [[ ! -e $root/modules/$name.ko ]] || return 0
    file=$(find_module "$name")
    # Built into the kernel, or not there: the program will see.
    [[ -n $file ]] || return 0
    to=$root/modules/$name.ko
    case $file in
        *.ko) cp "$file" "$to" ;;
        *.xz) need xz && xz --decompress --stdout "$file" >"$to" ;;
        *.zst) need zstd && zstd --decompress --quiet --stdout "$file" >"$to" ;;
        *) die "$file: unknown compression" ;;
    esac
    needs=$(tr '\0' '\n' <"$to" | sed -n 's/^depends=//p' | head -n 1)
    for need in ${needs//,/ }; do add_module "$need"; done
    printf '%s\n' "$name" >>"$root/modules/order"
}

# add_file SOURCE PLACE: with the libraries that it is linked with.
add_file() {
    local library
    [[ -r $1 ]] || die "$1 cannot be read"
    install -D -m "$([[ -x $1 ]] && echo 755 || echo 644)" "$1" "$root/$2"
    # A static program, or no program at all, has none.
    for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*' || true); do
        [[ -e $root/$library ]] || install -D -m 755 "$library" "$root/$library"
    done
}

write_init() {
    cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /run
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox --install -s /bin
export PATH=/bin
[ ! -e /modules/order ] || while read -r name; do insmod "/modules/$name.ko"; done </modules/order
ip link set lo up 2>/dev/null
if [ -e /start ]; then . /start "$@"; else setsid cttyhack sh; fi
echo "init: ended with status $?: switching off"
poweroff -f
END
    chmod 755 "$root/init"
}

# write_disk DISK: a FAT file system from its first sector on, whose boot loader starts $work/kernel with $work/initrd.
write_disk() {
    local kib free_kib=8192
    need mformat mcopy syslinux
    kib=$((($(stat -c %s "$work/kernel") + $(stat -c %s "$work/initrd")) / 1024 + free_kib))
    # A key on the console must not stop it.
    cat >"$work/syslinux.cfg" <<'END'
DEFAULT linux
NOESCAPE 1
LABEL linux
  KERNEL kernel
  INITRD initrd
  APPEND console=ttyS0 no_timer_check quiet panic=-1
END
    mformat -C -i "$1" -T $((2 * kib)) -h 16 -s 63 -v NETVM ::
    syslinux --install "$1"
    mcopy -i "$1" "$work/kernel" "$work/initrd" "$work/syslinux.cfg" ::
}

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
folder='' modules=() files=() disk=no drivers=no csb=no
while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) usage && exit ;;
        --module) modules+=("${2:?--module needs a name}") && shift 2 ;;
        --file) files+=("${2:?--file needs SOURCE:PLACE}") && shift 2 ;;
        --drivers) drivers=yes && shift ;;
        --e1000-csb) csb=yes && shift ;;
        --disk) disk=yes && shift ;;
        -*) die "there is no option $1" ;;
        *)
            if [[ -n $folder ]]; then break; fi
            folder=$1 && shift
            ;;
    esac
done
[[ -n $folder ]] || { usage >&2 && exit 2; }
need cpio gzip busybox ldd
mkdir -p "$folder"
folder=$(realpath "$folder")
suffix=''
[[ $drivers == no ]] || suffix=-drivers
kernel=${NETVM_GUEST_KERNEL:-$(dirname "$folder")/guest-kernel$suffix}
[[ -n ${NETVM_GUEST_KERNEL:-} ]] || fetch_kernel "$kernel"
image=$(find "$kernel" -path '*boot/vmlinuz-*' -print -quit)
[[ -n $image ]] || die "$kernel holds no boot/vmlinuz-*"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,modules}
busybox=$(command -v busybox)
add_file "$busybox" bin/busybox
write_init
for name in "${modules[@]}"; do add_module "$name"; done
if [[ $csb == yes ]]; then
    driver=$(dirname "$folder")/e1000-csb.ko
    "$here/e1000/build-driver.sh" "$kernel" "$driver" >&2
    files+=("$driver:modules/e1000-csb.ko")
fi
for file in "${files[@]}"; do add_file "${file%%:*}" "${file#*:}"; done
if [[ $# -gt 0 ]]; then
    program=$(command -v "$1") || die "there is no program $1"
    add_file "$program" "bin/${program##*/}"
    shift
    # shellcheck disable=SC2016 # for the shell in the image
    printf '/bin/%s%s "$@"\n' "${program##*/}" "$([[ $# -eq 0 ]] || printf ' %q' "$@")" >"$root/start"
fi
(cd "$root" && find . -mindepth 1 -printf '%P\n' | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 --reproducible) |
    gzip -1 >"$work/initrd"
cp "$image" "$work/kernel"
chmod 644 "$work/kernel" "$work/initrd"
if [[ $disk == yes ]]; then
    write_disk "$work/disk.img"
    mv "$work/disk.img" "$folder"
fi
mv "$work/initrd" "$work/kernel" "$folder"
printf '%s: %s, initramfs of %s KiB\n' "$folder" "${image##*/}" "$(($(stat -c %s "$folder/initrd") / 1024))"
