//! Keeps pages honest. `docs/librpma-map.md`: each C function has its row, and each test that is named exists; that the Rust items exist is
//! checked by rustdoc, of whose documentation the page is a part. ARCHITECTURE.md: the tests of the table of soundness exist. The
//! documentation: what is public has an example, and the examples run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The functions of librpma 1.3.0, and the one of the versions before 1.0 that has another name now.
const FUNCTIONS: &[&str] = &[
    "rpma_atomic_write",
    "rpma_conn_apply_remote_peer_cfg",
    "rpma_conn_cfg_delete",
    "rpma_conn_cfg_get_compl_channel",
    "rpma_conn_cfg_get_cq_size",
    "rpma_conn_cfg_get_rcq_size",
    "rpma_conn_cfg_get_rq_size",
    "rpma_conn_cfg_get_sq_size",
    "rpma_conn_cfg_get_srq",
    "rpma_conn_cfg_get_timeout",
    "rpma_conn_cfg_new",
    "rpma_conn_cfg_set_compl_channel",
    "rpma_conn_cfg_set_cq_size",
    "rpma_conn_cfg_set_rcq_size",
    "rpma_conn_cfg_set_rq_size",
    "rpma_conn_cfg_set_sq_size",
    "rpma_conn_cfg_set_srq",
    "rpma_conn_cfg_set_timeout",
    "rpma_conn_delete",
    "rpma_conn_disconnect",
    "rpma_conn_get_compl_fd",
    "rpma_conn_get_cq",
    "rpma_conn_get_event_fd",
    "rpma_conn_get_private_data",
    "rpma_conn_get_qp_num",
    "rpma_conn_get_rcq",
    "rpma_conn_next_event",
    "rpma_conn_req_connect",
    "rpma_conn_req_delete",
    "rpma_conn_req_get_private_data",
    "rpma_conn_req_new",
    "rpma_conn_req_recv",
    "rpma_conn_wait",
    "rpma_cq_get_fd",
    "rpma_cq_get_wc",
    "rpma_cq_wait",
    "rpma_ep_get_fd",
    "rpma_ep_listen",
    "rpma_ep_next_conn_req",
    "rpma_ep_shutdown",
    "rpma_err_2str",
    "rpma_flush",
    "rpma_log_get_threshold",
    "rpma_log_set_function",
    "rpma_log_set_threshold",
    "rpma_mr_advise",
    "rpma_mr_dereg",
    "rpma_mr_get_descriptor",
    "rpma_mr_get_descriptor_size",
    "rpma_mr_get_ptr",
    "rpma_mr_get_size",
    "rpma_mr_reg",
    "rpma_mr_remote_delete",
    "rpma_mr_remote_from_descriptor",
    "rpma_mr_remote_get_flush_type",
    "rpma_mr_remote_get_size",
    "rpma_peer_cfg_delete",
    "rpma_peer_cfg_from_descriptor",
    "rpma_peer_cfg_get_descriptor",
    "rpma_peer_cfg_get_descriptor_size",
    "rpma_peer_cfg_get_direct_write_to_pmem",
    "rpma_peer_cfg_new",
    "rpma_peer_cfg_set_direct_write_to_pmem",
    "rpma_peer_delete",
    "rpma_peer_new",
    "rpma_read",
    "rpma_recv",
    "rpma_send",
    "rpma_send_with_imm",
    "rpma_srq_cfg_delete",
    "rpma_srq_cfg_get_rcq_size",
    "rpma_srq_cfg_get_rq_size",
    "rpma_srq_cfg_new",
    "rpma_srq_cfg_set_rcq_size",
    "rpma_srq_cfg_set_rq_size",
    "rpma_srq_delete",
    "rpma_srq_get_rcq",
    "rpma_srq_new",
    "rpma_srq_recv",
    "rpma_utils_conn_event_2str",
    "rpma_utils_get_ibv_context",
    "rpma_utils_ibv_context_is_odp_capable",
    "rpma_write",
    "rpma_write_atomic",
    "rpma_write_with_imm",
];

const PAGE: &str = include_str!("../librpma-map.md");
const ARCHITECTURE: &str = include_str!("../../ARCHITECTURE.md");

/// The rows of functions: the C function, the Rust items, the test.
fn rows() -> Vec<[&'static str; 3]> {
    PAGE.lines()
        .filter(|line| line.starts_with("| `rpma_"))
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            cells.try_into().unwrap_or_else(|_| panic!("not three cells: {line}"))
        })
        .collect()
}

#[test]
fn every_function_of_librpma_has_one_row() {
    let rows: Vec<_> = rows().iter().map(|[c, ..]| c.trim_matches('`')).collect();
    let distinct: BTreeSet<_> = rows.iter().copied().collect();
    assert_eq!(distinct, FUNCTIONS.iter().copied().collect(), "the page and the list of functions differ");
    assert_eq!((rows.len(), FUNCTIONS.len()), (85, 85), "a function has two rows");
}

#[test]
fn every_row_names_a_rust_item_that_rustdoc_looks_for() {
    for [c, rust, _] in rows() {
        assert!(rust.contains("[`") || rust.contains("`log"), "{c}: {rust} is no link to an item");
    }
}

#[test]
fn every_function_of_librpma_is_found_by_its_name() {
    let sources: String = sources().iter().map(|source| fs::read_to_string(source).unwrap()).collect();
    // Logging is another crate's.
    for function in FUNCTIONS.iter().filter(|function| !function.starts_with("rpma_log_")) {
        assert!(sources.contains(&format!("#[doc(alias = \"{function}\")]")), "nothing has the alias {function}");
    }
}

#[test]
fn every_test_that_the_map_names_is_there() {
    for [c, _, test] in rows() {
        // Said in words where there is nothing to run.
        assert!(is_there(test) || test.contains("`Copy`"), "{c}: no test {test}, and no reason");
    }
}

#[test]
fn every_test_that_the_soundness_table_names_is_there() {
    let table: Vec<_> = ARCHITECTURE.split("| attempt |").nth(1).unwrap().lines().skip(2).collect();
    assert!(table.len() > 20, "{} rows", table.len());
    for row in table {
        let test = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        assert!(is_there(test), "no test {test}: {row}");
    }
}

/// Without its reason beside it, an example that is not run looks like one that was tried.
#[test]
fn every_example_runs_or_says_why_not() {
    let silent: Vec<_> = public_items().into_iter().filter(|item| item.examples.silent).map(|item| item.name).collect();
    assert_eq!(silent, Vec::<String>::new(), "examples of these are not run, and {NOT_RUN:?} is not written above them");
}

#[test]
fn every_public_type_has_an_example_of_its_own() {
    let types = public_items().into_iter().filter(|item| item.kind == Kind::Type);
    // An error is seen where it comes from.
    let without: Vec<_> =
        types.filter(|item| !item.examples.any && !item.name.ends_with("Error")).map(|item| item.name).collect();
    assert_eq!(without, Vec::<String>::new());
}

#[test]
fn every_public_function_is_called_in_an_example_that_runs() {
    let items = public_items();
    let run: String = items.iter().map(|item| item.examples.run.as_str()).collect();
    let functions: BTreeSet<_> = items.iter().filter(|item| item.kind == Kind::Function).map(|item| &*item.name).collect();
    assert!(functions.len() > 150, "{} functions found", functions.len());
    // By name alone: which type's it is, only the compiler knows.
    let not_called: Vec<_> = functions.into_iter().filter(|name| !calls(&run, name)).collect();
    assert_eq!(not_called, Vec::<&str>::new());
}

/// What stands above an example that is compiled and not run, with its reason behind it.
const NOT_RUN: &str = "Not run as a test, because";

/// A public item, or a module or whatever else has documentation, as far as the sources tell.
struct Item {
    name: String,
    kind: Kind,
    examples: Examples,
}

#[derive(PartialEq)]
enum Kind {
    Type,
    Function,
    Other,
}

/// The examples of one item.
#[derive(Default)]
struct Examples {
    /// One that runs, or says why not.
    any: bool,
    /// One that is not run, and does not say why.
    silent: bool,
    /// The code of those that run.
    run: String,
}

/// What the crates that users see have that is documented, by their sources: each item is on a line of its own, under its documentation.
fn public_items() -> Vec<Item> {
    let is_documented =
        |source: &PathBuf| ["rpma", "rpma-cm", "rpma-mr"].iter().any(|krate| source.starts_with(folder(krate, "src")));
    let exports: String =
        ["rpma", "rpma-cm", "rpma-mr"].iter().map(|krate| exports(&folder(krate, "src").join("lib.rs"))).collect();
    let mut items = Vec::new();
    for source in sources().into_iter().filter(is_documented) {
        let text = fs::read_to_string(&source).expect("a source that can be read");
        let is_module = source.file_stem().is_some_and(|stem| has_word(&exports, &format!("mod {}", stem.to_string_lossy())));
        let (mut docs, mut is_hidden) = (Vec::new(), false);
        // Unit tests are the last of each file.
        for line in text.lines().map(str::trim).take_while(|line| *line != "mod tests {") {
            if let Some(doc) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
                docs.push(doc.strip_prefix(' ').unwrap_or(doc));
            } else if line.starts_with("#[") || line.starts_with("//") {
                is_hidden |= line == "#[doc(hidden)]";
            } else {
                let (mut kind, name) = item(line);
                if is_hidden || kind == Kind::Type && !is_module && !has_word(&exports, name) {
                    kind = Kind::Other;
                }
                let name = if kind == Kind::Other { format!("{}: {line}", source.display()) } else { name.to_owned() };
                items.push(Item { name, kind, examples: examples(&docs) });
                docs.clear();
                is_hidden = false;
            }
        }
    }
    items
}

/// What a crate's `lib.rs` exports by name, and its public modules: all of it but the documentation.
fn exports(lib: &Path) -> String {
    let text = fs::read_to_string(lib).expect("each crate has one");
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.filter(|line| !line.starts_with("mod ")).flat_map(|line| [line, "\n"]).collect()
}

/// What a line begins that is outside of documentation and attributes.
fn item(line: &str) -> (Kind, &str) {
    let Some(mut rest) = line.strip_prefix("pub ") else { return (Kind::Other, line) };
    while let Some(word) = ["const ", "async ", "unsafe "].iter().find(|word| rest.starts_with(**word)) {
        rest = &rest[word.len()..];
    }
    let Some((keyword, name)) = rest.split_once(' ') else { return (Kind::Other, line) };
    let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().expect("a split has a first part");
    match keyword {
        "fn" => (Kind::Function, name),
        "struct" | "enum" | "trait" => (Kind::Type, name),
        _ => (Kind::Other, name),
    }
}

fn examples(docs: &[&str]) -> Examples {
    let mut examples = Examples::default();
    let (mut fence, mut above) = (None, "");
    for line in docs {
        match (fence, line.strip_prefix("```")) {
            (None, Some(kind)) => {
                fence = Some(kind);
                let runs = kind.is_empty();
                let says_why = above.starts_with(NOT_RUN);
                examples.any |= runs || says_why;
                examples.silent |= !says_why && (kind.contains("no_run") || kind.contains("ignore"));
            }
            (Some(_), Some(_)) => fence = None,
            (Some(""), None) => examples.run.extend([line, "\n"]),
            (Some(_), None) => {}
            (None, None) if line.is_empty() => {}
            (None, None) => above = line,
        }
    }
    examples
}

/// Whether `code` calls something of this name.
fn calls(code: &str, name: &str) -> bool {
    behind_word(code, name).any(|rest| rest.starts_with('('))
}

/// Whether `text` has this word.
fn has_word(text: &str, word: &str) -> bool {
    behind_word(text, word).next().is_some()
}

/// What follows `word`, wherever it is in `text` and not a part of a longer one.
fn behind_word<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let found = text.match_indices(word).filter(move |(at, _)| !text[..*at].ends_with(is_part));
    found.map(move |(at, _)| &text[at + word.len()..]).filter(move |rest| !rest.starts_with(is_part))
}

/// Whether there is a test of the name `file::function`; `*` stands for every function.
fn is_there(name: &str) -> bool {
    let Some((file, function)) = name.trim_matches('`').split_once("::") else { return false };
    let function = if function == "*" { "#[test]".to_owned() } else { format!("fn {function}()") };
    sources().into_iter().any(|source| {
        source.file_stem().is_some_and(|stem| stem == file)
            && fs::read_to_string(&source).is_ok_and(|text| text.contains(&function))
    })
}

/// A folder of one of the workspace's crates.
fn folder(krate: &str, name: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace's folder");
    workspace.join(krate).join(name)
}

/// The Rust sources of the workspace's crates.
fn sources() -> Vec<PathBuf> {
    let mut sources = Vec::new();
    for krate in ["rpma", "rpma-cm", "rpma-mr", "rpma-sys", "rpma-soft"] {
        for folder_name in ["src", "tests"] {
            collect(&folder(krate, folder_name), &mut sources);
        }
    }
    sources
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("a folder that can be read").path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}
