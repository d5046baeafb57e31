// SPDX-License-Identifier: Apache-2.0
//! QEMU as the client of a vfio-user socket, which gives guests e1000 cards.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The oldest QEMU with the device `vfio-user-pci`.
pub const OLDEST_WITH_E1000: &str = "10.1";
/// The emulator, by its usual name.
pub const QEMU: &str = "qemu-system-x86_64";

/// Whether this QEMU is a vfio-user client. Runs it briefly.
#[must_use]
pub fn is_vfio_user_client(program: &Path) -> bool {
    let asked = Command::new(program).args(["-device", "vfio-user-pci,help"]).stdin(Stdio::null()).output();
    asked.is_ok_and(|asked| String::from_utf8_lossy(&asked.stdout).contains("socket="))
}

/// The first QEMU that is a vfio-user client: `program`, or the one that `./dev setup --guests` unpacks below the build
/// folder that this program runs from.
#[must_use]
pub fn find_vfio_user_client(program: &Path) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let folders = own.iter().flat_map(|own| own.ancestors().skip(1).take(3));
    let unpacked = folders.map(|folder| folder.join("guest/qemu").join(QEMU)).filter(|path| path.exists());
    std::iter::once(program.to_owned()).chain(unpacked).find(|program| is_vfio_user_client(program))
}
