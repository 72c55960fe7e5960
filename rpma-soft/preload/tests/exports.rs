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
#[ignore = "needs Debian's libibverbs1, librdmacm1 and binutils"]
fn door_exports_every_function_of_the_installed_libraries() {
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let installed = installed(library);
        let exported = functions(&installed);
        assert!(exported.len() > 50, "{library} exports {}", exported.len());
        assert_eq!(exported, listed_by_nm(&installed), "{library}");
        assert_eq!(lacking(exported), [""; 0], "{library}");
    }
}

/// The functions that `nm -D` lists: their kind is T.
fn listed_by_nm(library: &Path) -> BTreeSet<String> {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let functions = listed.lines().filter_map(|line| line.split_once(" T ").map(|(_, name)| name));
    functions.map(|name| name.split('@').next().unwrap().to_owned()).collect()
}

/// The loader is asked what it binds each symbol to, all of them at the start (`LD_DEBUG` and `LD_BIND_NOW`, ld.so(8)): those of the
/// program, and those that rdma-core's libraries, device drivers and librpma have of each other.
#[test]
#[ignore = "needs Debian's rdmacm-utils, ibverbs-utils, perftest and librpma0"]
fn no_function_of_rdma_core_is_bound_to_its_own_libraries() {
    let libraries = ["libibverbs.so.1", "librdmacm.so.1"].map(installed);
    let functions: BTreeSet<String> = libraries.iter().flat_map(|library| functions(library)).collect();
    // How each of them ends at once.
    let programs = [
        "rping -h",
        "ucmatose -h",
        "cmtime -h",
        "rdma_server -h",
        "rdma_client -h",
        "rdma_xserver -h",
        "rdma_xclient -h",
        "ibv_devices",
        "ibv_devinfo",
        "ib_write_lat --help",
        "ib_read_lat --help",
        "ib_send_lat --help",
        "ib_atomic_lat --help",
        "ib_write_bw --help",
        "ib_read_bw --help",
        "ib_send_bw --help",
    ];
    let door = door();
    let with_librpma = format!("{}:librpma.so.0", door.display());
    for line in programs {
        let mut words = line.split_whitespace();
        let mut program = Command::new(words.next().unwrap());
        program.args(words).env("LD_DEBUG", "bindings").env("LD_BIND_NOW", "1").env("LD_PRELOAD", &with_librpma);
        let told = String::from_utf8(program.output().unwrap_or_else(|e| panic!("{line}: {e}")).stderr).unwrap();
        let bound: Vec<Binding<'_>> = told.lines().filter_map(Binding::read).filter(|is| functions.contains(is.symbol)).collect();
        let wrong: Vec<_> = bound.iter().filter(|is| Path::new(is.to) != door).collect();
        assert!(wrong.is_empty(), "{line}: {wrong:#?}");
        // The program's own are among them, and those of librpma.
        let own = Path::new(line.split_whitespace().next().unwrap());
        assert!(bound.iter().any(|is| Path::new(is.of).file_name() == own.file_name()), "{line}: {}", bound.len());
        assert!(bound.iter().any(|is| is.of.contains("librpma.so")), "{line}: {}", bound.len());
    }
}

/// A line of the loader's: `binding file OF [0] to TO [0]: normal symbol `SYMBOL' [VERSION]`.
#[derive(Debug)]
struct Binding<'a> {
    of: &'a str,
    to: &'a str,
    symbol: &'a str,
}

impl<'a> Binding<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (files, symbol) = line.split_once("binding file ")?.1.split_once(": normal symbol `")?;
        let (of, to) = files.split_once(" to ")?;
        let file = |text: &'a str| text.rsplit_once(" [").map(|(path, _)| path);
        Some(Self { of: file(of)?, to: file(to)?, symbol: symbol.split('\'').next()? })
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
