//! The C door of `rpma-soft`: `librpma_soft_preload.so`, for `LD_PRELOAD`.
//!
//! A program that was built for rdma-core runs on the software provider with it, unchanged: every function that `libibverbs.so.1` and
//! `librdmacm.so.1` export is exported here too, so that each of the program's calls comes here and none reaches rdma-core with structures
//! of ours. What the headers of rdma-core compile into the program (`ibv_post_send`, `ibv_poll_cq`, …) finds its function pointers in those
//! structures, as it does with a device driver of rdma-core. `docs/soft-preload.md` says how to use it and what can be expected.
//!
//! - `table`: the control-path calls of the boundary (`rpma-sys/src/calls.rs`), generated from that table.
//! - `verbs` and `cm`: calls that only C programs make.
//! - `names` and `rates`: words and numbers of enumerations.
//! - `unsupported`: the rest, as a table. Each answers as its man page tells failure, with EOPNOTSUPP.
//!
//! # Environment
//!
//! | variable | effect |
//! |---|---|
//! | `RPMA_SOFT_NATIVE=off` | the device has no native flush, no native atomic write and no on-demand paging |
//! | `RPMA_SOFT_REFUSED_AFTER_MS` | how long a port on which nobody listens is tried again before the client is rejected; 1000 without it |

mod answer;
mod cm;
mod names;
mod provider;
mod rates;
mod table;
mod unsupported;
mod verbs;
