// SPDX-License-Identifier: Apache-2.0
//! Programs of another Debian release that `./dev setup --peers` has unpacked below the target folder.

use std::path::PathBuf;

/// The files of a package; `None`, with the reason printed, if it is not there or lacks a file.
fn root(name: &str, path: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let root = own.ancestors().nth(3)?.join("guest").join(name).join("root");
    if !root.join(path).exists() {
        println!("SKIP: no {name} here: ./dev setup --peers");
        return None;
    }
    Some(root)
}

/// A program, started by the loader of its release; `None`, with the reason printed, if it is not there.
pub fn peer(name: &str, path: &str) -> Option<Vec<String>> {
    let root = root(name, path)?;
    let at = |path: &str| root.join(path).display().to_string();
    Some(vec![
        at("lib64/ld-linux-x86-64.so.2"),
        "--library-path".to_owned(),
        at("usr/lib/x86_64-linux-gnu"),
        at(path),
    ])
}

/// A file of a package; `None`, with the reason printed, if it is not there.
pub fn peer_file(name: &str, path: &str) -> Option<PathBuf> {
    Some(root(name, path)?.join(path))
}
