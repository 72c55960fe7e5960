//! Keeps pages honest. `docs/librpma-map.md`: each C function has its row, and each test that is named exists; that the Rust items exist is
//! checked by rustdoc, of whose documentation the page is a part. ARCHITECTURE.md: the tests of the table of soundness exist.

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

/// Whether there is a test of the name `file::function`; `*` stands for every function.
fn is_there(name: &str) -> bool {
    let Some((file, function)) = name.trim_matches('`').split_once("::") else { return false };
    let function = if function == "*" { "#[test]".to_owned() } else { format!("fn {function}()") };
    sources().into_iter().any(|source| {
        source.file_stem().is_some_and(|stem| stem == file)
            && fs::read_to_string(&source).is_ok_and(|text| text.contains(&function))
    })
}

/// The Rust sources of the workspace's crates.
fn sources() -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace's folder");
    let mut sources = Vec::new();
    for krate in ["rpma", "rpma-cm", "rpma-mr", "rpma-sys", "rpma-soft"] {
        for folder in ["src", "tests"] {
            collect(&workspace.join(krate).join(folder), &mut sources);
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
