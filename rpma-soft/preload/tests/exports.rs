//! The door exports every function of rdma-core's libraries: one that it lacked would be taken from them, with structures of ours.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSymbol, SymbolKind};
use support::door;

/// The functions that a library exports: the same as `nm -D --defined-only` tells as T.
fn functions(library: &Path) -> BTreeSet<String> {
    let bytes = fs::read(library).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let exported = elf.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    // Names come with the version behind an @ from some linkers.
    exported.map(|symbol| symbol.name().unwrap().split('@').next().unwrap().to_owned()).collect()
}

/// Those of `names` that the door lacks.
fn lacking(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let exported = functions(&door());
    names.into_iter().filter(|name| !exported.contains(name)).collect()
}

#[test]
fn door_exports_every_function_of_debian_12_and_13() {
    let listed: Vec<String> =
        include_str!("exported-functions.txt").lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    assert!(listed.len() > 200, "{}", listed.len());
    assert_eq!(lacking(listed), [""; 0]);
}

#[test]
fn door_exports_rdma_functions_and_its_mark_and_nothing_else() {
    let ours =
        |name: &String| ["ibv_", "_ibv_", "rdma_", "verbs_", "_verbs_", "__verbs_"].iter().any(|start| name.starts_with(start));
    let listed = include_str!("exported-functions.txt");
    let strange: Vec<String> =
        functions(&door()).into_iter().filter(|name| !ours(name) && !listed.lines().any(|line| line == name)).collect();
    assert_eq!(strange, [""; 0]);
}

#[test]
#[ignore = "needs Debian's libibverbs1 and librdmacm1"]
fn door_exports_every_function_of_the_installed_libraries() {
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let installed = functions(&installed(library));
        assert!(installed.len() > 50, "{library} exports {}", installed.len());
        assert_eq!(lacking(installed), [""; 0], "{library}");
    }
}

/// Where the loader finds a library.
fn installed(library: &str) -> PathBuf {
    let cache = Command::new("ldconfig").arg("-p").output().unwrap();
    let cache = String::from_utf8(cache.stdout).unwrap();
    let line = cache.lines().find(|line| line.trim_start().starts_with(library));
    let line = line.unwrap_or_else(|| panic!("{library} is not installed"));
    line.rsplit("=> ").next().unwrap().into()
}
