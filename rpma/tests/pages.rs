//! Keeps pages honest. `docs/librpma-map.md`: each C function has its row, and the Rust items and the test that are named exist (rustdoc
//! looks for the items too, of whose documentation the page is a part). ARCHITECTURE.md: the tests of the table of soundness exist. The
//! documentation: what is public has an example, and the examples run.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rpma::prelude::*;

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
fn every_rust_item_that_the_map_names_is_public() {
    let types: BTreeSet<_> = public_items().into_iter().filter(|item| item.kind == Kind::Type).map(|item| item.name).collect();
    let members = public_members();
    assert!(members.len() > 200, "{} members found", members.len());
    let is_public = |name: &str| match name.split_once("::") {
        Some((of, _)) => types.contains(of) && members.contains(name),
        None => types.contains(name),
    };
    for [c, rust, _] in rows() {
        let rest = in_plain_code().iter().fold(rust.to_owned(), |rest, known| rest.replace(known, ""));
        let mut named = rest.split('`').skip(1).step_by(2).peekable();
        assert!(named.peek().is_some() || rest.len() < rust.len(), "{c}: {rust} names nothing");
        for name in named {
            assert!(is_public(name), "{c}: nothing public is {name:?}");
        }
    }
}

/// What the map names and no search in our sources finds: here the compiler looks for it.
fn in_plain_code() -> [&'static str; 10] {
    fn told<T>(_: T, words: &'static str) -> &'static str {
        words
    }
    [
        told(<Conn as AsFd>::as_fd, "`AsFd` of [`Conn`]"),
        told(<Endpoint as AsFd>::as_fd, "`AsFd` of [`Endpoint`]"),
        told(<CompletionQueue as AsFd>::as_fd, "`AsFd` of [`CompletionQueue`]"),
        told(<ConnEvent as fmt::Debug>::fmt, "`Debug` of [`ConnEvent`]"),
        told(<ErrorCode as fmt::Display>::fmt, "`Display` of [`ErrorCode`]"),
        told((ConnReq::<Outgoing>::connect, ConnReq::<Incoming>::connect), "`connect` of either [`ConnReq`]"),
        told(ConnReq::<Incoming>::reject, "`reject`"),
        told(log::set_logger, "the crate `log`: a logger is installed with `log::set_logger`"),
        told(log::set_max_level, "`log::set_max_level`"),
        told(log::max_level, "`log::max_level`"),
    ]
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
        assert!(is_there(test), "{c}: no test {test}");
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

/// Many types have calls of these names, which differ in what ends the waiting.
#[test]
fn every_call_that_waits_or_ends_waiting_is_in_an_example_of_its_own_type_that_runs() {
    const WAIT: [&str; 7] = ["wait", "next_event", "next_request", "next_conn_req", "established", "completions", "close"];
    let items = public_items();
    let waiting: Vec<_> = items.iter().filter(|item| item.kind == Kind::Function && WAIT.contains(&item.name.as_str())).collect();
    assert!(waiting.len() > 25, "{} calls found", waiting.len());
    let without: BTreeSet<_> = waiting
        .iter()
        .filter(|call| !items.iter().any(|item| item.owner == call.owner && calls(&item.examples.run, &call.name)))
        .map(|call| format!("{}::{}", call.owner, call.name))
        .collect();
    assert_eq!(without, BTreeSet::new());
}

/// What stands above an example that is compiled and not run, with its reason behind it.
const NOT_RUN: &str = "Not run as a test, because";

/// A public item, or a module or whatever else has documentation, as far as the sources tell.
struct Item {
    name: String,
    kind: Kind,
    /// What it is a part of, or is: the type of the `impl` around it, with what is in its brackets.
    owner: String,
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
    let exports: String =
        ["rpma", "rpma-cm", "rpma-mr"].iter().map(|krate| exports(&folder(krate, "src").join("lib.rs"))).collect();
    let mut items = Vec::new();
    for (source, text) in documented_sources() {
        let is_module = source.file_stem().is_some_and(|stem| has_word(&exports, &format!("mod {}", stem.to_string_lossy())));
        let (mut docs, mut is_hidden, mut owner) = (Vec::new(), false, String::new());
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
                if let Some(of) = implemented(line) {
                    owner = of.to_owned();
                } else if kind == Kind::Type {
                    owner = name.to_owned();
                }
                let name = if kind == Kind::Other { format!("{}: {line}", source.display()) } else { name.to_owned() };
                items.push(Item { name, kind, owner: owner.clone(), examples: examples(&docs) });
                docs.clear();
                is_hidden = false;
            }
        }
    }
    items
}

/// The public functions, constants and fields of all types, as `Type::member`.
fn public_members() -> BTreeSet<String> {
    let mut members = BTreeSet::new();
    for (_, text) in documented_sources() {
        let mut of = "";
        for line in text.lines().map(str::trim).take_while(|line| *line != "mod tests {") {
            if let Some(implemented) = line.strip_prefix("impl") {
                // Without the parameters of the block, if there are some.
                let generic = implemented.starts_with('<').then(|| implemented.split_once("> ")).flatten();
                of = first_word(generic.map_or(implemented.trim_start(), |(_, of)| of));
            } else if let (Kind::Type, name) = item(line) {
                of = name;
            } else if let Some(member) = line.strip_prefix("pub ") {
                let words = member.split(' ').find(|word| !["const", "async", "unsafe", "fn"].contains(word));
                members.insert(format!("{of}::{}", first_word(words.unwrap_or_default())));
            }
        }
        // A macro that gives its functions to the types that it is called with.
        for of in text.lines().filter_map(|line| line.split_once("!(")?.1.strip_suffix(");")) {
            let given = members.iter().filter_map(|member| Some(format!("{of}{}", member.strip_prefix("$handle")?)));
            members.extend(given.collect::<Vec<_>>());
        }
        members.retain(|member| !member.starts_with('$'));
    }
    members
}

/// The name that `text` begins with.
fn first_word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next().expect("a split has a first part")
}

/// The sources of the crates that users see, with their text.
fn documented_sources() -> Vec<(PathBuf, String)> {
    let folders = ["rpma", "rpma-cm", "rpma-mr"].map(|krate| folder(krate, "src"));
    let sources = sources().into_iter().filter(|source| folders.iter().any(|folder| source.starts_with(folder)));
    sources.map(|source| (source.clone(), fs::read_to_string(source).expect("a source that can be read"))).collect()
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

/// The type whose `impl` a line begins.
fn implemented(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let depth = |depth: &mut i32, c: char| {
            *depth += i32::from(c == '<') - i32::from(c == '>');
            Some((*depth, c))
        };
        let end = rest.chars().scan(0, depth).position(|(depth, _)| depth == 0)?;
        rest = &rest[end + 1..];
    }
    let of = rest.split_once(" for ").map_or(rest, |(_, of)| of);
    Some(of.split([';', '{']).next()?.trim())
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

/// Whether there is a test of the name `file::function` that runs: those that are ignored do so in guests, and are of the target `kernel`.
/// `*` stands for every function.
fn is_there(name: &str) -> bool {
    let Some((file, function)) = name.trim_matches('`').split_once("::") else { return false };
    let begins = if function == "*" { "fn ".to_owned() } else { format!("fn {function}()") };
    sources().into_iter().filter(|source| source.file_stem().is_some_and(|stem| stem == file)).any(|source| {
        let text = fs::read_to_string(&source).expect("a source that can be read");
        let is_for_guests = source.starts_with(folder("rpma", "tests/kernel"));
        let (mut is_test, mut is_ignored) = (false, false);
        // Attributes are each on a line, right above.
        text.lines().map(str::trim).any(|line| {
            if line.starts_with("#[") {
                is_test |= line == "#[test]";
                is_ignored |= line.starts_with("#[ignore");
                return false;
            }
            let found = is_test && line.starts_with(&begins) && (is_for_guests || !is_ignored);
            (is_test, is_ignored) = (false, false);
            found
        })
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
