// SPDX-License-Identifier: Apache-2.0
//! Checks of memory: reserved and transparent huge pages, sealed memfds, the limit for locked memory.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit};

use super::Check;
use super::kernel::has_capability;
use super::root::Root;
use crate::format::bytes;

const HUGE: &str = "sys/kernel/mm/hugepages";
const SHMEM: &str = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Huge page memory to reserve: enough for a few trust groups.
const WANTED: u64 = 512 << 20;
const MIB: u64 = 1 << 20;

pub(super) fn check(root: &Root) -> Vec<Check> {
    let mut checks = huge_pages(root);
    checks.push(transparent(root));
    checks.push(sealed_memory());
    checks.push(locked(root));
    checks
}

/// Huge page sizes of this kernel in bytes, smallest first.
fn sizes(root: &Root) -> Vec<u64> {
    let size = |name: &String| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> = root.list(HUGE).iter().filter_map(size).map(|kib| kib << 10).collect();
    sizes.sort_unstable();
    sizes
}

fn huge_pages(root: &Root) -> Vec<Check> {
    let sizes = sizes(root);
    if sizes.is_empty() {
        return vec![Check::note(
            "huge pages",
            "this kernel has none",
            "packets are in normal pages: more TLB misses, some percent slower",
        )];
    }
    let pool = |size: u64, file: &str| {
        root.number(&format!("{HUGE}/hugepages-{}kB/{file}", size >> 10)).unwrap_or(0)
    };
    let total: u64 = sizes.iter().map(|size| pool(*size, "nr_hugepages") * size).sum();
    let free: u64 = sizes.iter().map(|size| pool(*size, "free_hugepages") * size).sum();
    let list: Vec<String> = sizes
        .iter()
        .map(|size| {
            format!(
                "{}: {} free of {}",
                bytes(*size),
                pool(*size, "free_hugepages"),
                pool(*size, "nr_hugepages")
            )
        })
        .collect();
    let found = list.join("; ");
    let size = sizes[0];
    let command = |wanted: u64| {
        let pages = pool(size, "nr_hugepages") + wanted.div_ceil(size);
        format!("echo {pages} | sudo tee /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", size >> 10)
    };
    vec![if total == 0 {
        Check::note("huge pages", found, "packets are in normal pages: more TLB misses, some percent slower")
            .command(command(WANTED))
    } else if free < 64 * MIB {
        Check::note("huge pages", found, "nearly used up: further trust groups get normal pages")
            .command(command(WANTED))
    } else {
        Check::ok("huge pages", found, format!("{} free for packets", bytes(free)))
    }]
}

/// Transparent huge pages for memfds. The kernel puts the active setting in brackets.
fn transparent(root: &Root) -> Check {
    let Some(words) = root.read(SHMEM) else {
        return Check::note(
            "transparent huge pages",
            "not in this kernel",
            "without reserved huge pages, packets are in 4 KiB pages",
        );
    };
    let word =
        words.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')).unwrap_or(&words);
    match word {
        "advise" | "always" | "within_size" | "force" => Check::ok(
            "transparent huge pages",
            format!("{word} for shared memory"),
            "packet memory gets huge pages if the kernel finds any, even without reserved ones",
        ),
        _ => Check::note(
            "transparent huge pages",
            format!("{word} for shared memory"),
            "without reserved huge pages, packets are in 4 KiB pages",
        )
        .command("echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    }
}

/// Whether memfds, of which packet memory is made, can be sealed.
fn sealed_memory() -> Check {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    let make = |flags: MemfdFlags| {
        let file = memfd_create("netvm-doctor", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, 2 * MIB)?;
        fcntl_add_seals(&file, seals)
    };
    let (normal, huge) = (make(MemfdFlags::empty()), make(MemfdFlags::HUGETLB));
    match (normal, huge) {
        (Ok(()), Ok(())) => Check::ok(
            "sealed memory",
            "memfd with seals, in huge pages too",
            "NFs cannot resize the packet memory they share",
        ),
        (Ok(()), Err(error)) => Check::note(
            "sealed memory",
            format!("memfd with seals; not in huge pages: {error}"),
            "packet memory gets normal pages",
        ),
        (Err(error), _) => Check::warn(
            "sealed memory",
            format!("no memfd with seals: {error}"),
            "netvm needs Linux 5.1 or newer for its packet memory",
        ),
    }
}

fn locked(root: &Root) -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    let found = limit.map_or_else(|| "unlimited".to_owned(), bytes);
    if limit.is_none() {
        Check::ok("locked memory", found, "AF_XDP ports can register any region")
    } else if has_capability(root, "CAP_IPC_LOCK") {
        Check::ok(
            "locked memory",
            format!("{found}, and CAP_IPC_LOCK"),
            "the limit does not apply to this user",
        )
    } else {
        Check::note("locked memory", found, "AF_XDP ports cannot register regions larger than this")
            .command("ulimit -l unlimited  # as root, or LimitMEMLOCK=infinity in the systemd unit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::doctor::root::tests::Tree;

    #[test]
    fn huge_pages_are_counted_for_every_size() {
        let small = |total: &'static str, free: &'static str| {
            Tree::new(&[
                ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", total),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", free),
                ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0"),
            ])
        };
        let check = &huge_pages(&small("0", "0").root())[0];
        assert_eq!(check.level, Level::Note);
        assert_eq!(check.found, "2 MiB: 0 free of 0; 1 GiB: 0 free of 0");
        assert_eq!(
            check.command.as_deref(),
            Some("echo 256 | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
        );
        let check = &huge_pages(&small("100", "10").root())[0];
        assert!(check.level == Level::Note && check.command.as_deref().unwrap().starts_with("echo 356 "));
        let check = &huge_pages(&small("100", "100").root())[0];
        assert_eq!((check.level, check.meaning.as_str()), (Level::Ok, "200 MiB free for packets"));
        assert_eq!(huge_pages(&Tree::new(&[]).root())[0].found, "this kernel has none");
    }

    #[test]
    fn the_setting_in_brackets_is_the_active_one() {
        let of = |words: &str| transparent(&Tree::new(&[(SHMEM, words)]).root());
        assert_eq!(of("always within_size [advise] never deny force\n").level, Level::Ok);
        let never = of("always within_size advise [never] deny force\n");
        assert_eq!((never.level, never.found.as_str()), (Level::Note, "never for shared memory"));
        assert!(never.command.unwrap().ends_with("shmem_enabled"));
        assert_eq!(transparent(&Tree::new(&[]).root()).found, "not in this kernel");
    }

    #[test]
    fn this_kernel_seals_memory() {
        assert_ne!(sealed_memory().level, Level::Warn, "{}", sealed_memory().found);
    }
}
