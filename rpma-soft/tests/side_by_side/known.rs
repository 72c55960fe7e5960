//! The list of known differences. Why each is there is told by the documentation of `Soft`, in `src/differences.md`.

use Kernel::{Backports, Bookworm, Trixie};

/// A paragraph of the documentation, and the answers that differ for its reason.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The words in bold that its paragraph begins with.
    pub(crate) title: &'static str,
    /// On which kernels which answers differ, and what soft says.
    pub(crate) answers: &'static [(&'static [Kernel], &'static str, &'static str)],
}

/// The kernels whose soft-RoCE is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// 6.1.
    Bookworm,
    /// 6.12.
    Trixie,
    /// 7.x.
    Backports,
}

const ALL: &[Kernel] = &[Bookworm, Trixie, Backports];
const OLD: &[Kernel] = &[Bookworm];
const NEWER: &[Kernel] = &[Trixie, Backports];

/// Differences.
#[rustfmt::skip]
pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        title: "Its limits and attributes are its own.",
        answers: &[
            (ALL, "device: page_size_cap", "0x1000"),
            (ALL, "device: max_qp_wr", "32768"),
            (ALL, "device: max_cqe", "4194303"),
            (ALL, "device: max_res_rd_atom", "2147483647"),
            (ALL, "device: max_srq", "16777215"),
            (ALL, "device: max_srq_wr", "32768"),
            (ALL, "device: max_srq_sge", "32"),
            (ALL, "device: max_pkeys", "1"),
            (ALL, "device: local_ca_ack_delay", "0"),
            (ALL, "device: device_cap_flags", "0x1000"),
            (ALL, "port: active_mtu", "5"),
            (ALL, "port: max_msg_sz", "0x40000000"),
            (ALL, "port: flags", "0"),
            (ALL, "query: client, path", "migration 0, mtu 5"),
            (ALL, "query: server, path", "migration 0, mtu 5"),
            (NEWER, "query: client, timers", "19, not ready 0"),
            (NEWER, "query: server, timers", "19, not ready 0"),
        ],
    },
    Difference {
        title: "There are no memory windows",
        answers: &[
            (ALL, "device: max_mw", "0"),
            (ALL, "registration with rights: binding of windows", "EINVAL"),
        ],
    },
    Difference {
        title: "Sizes are granted as asked for",
        answers: &[
            (ALL, "completion queue: size 10 is granted as", "10"),
            (OLD, "full queue: sends that are taken", "as granted"),
            (OLD, "full queue: receives that are taken", "as granted"),
            (OLD, "full queue: places after unsignaled ones and a polled one", "as granted"),
            (OLD, "shared receive queue: receives that are taken", "as granted"),
            (ALL, "sharing: receives of its own are granted as", "0"),
            (ALL, "query: client, reads and atomics", "1 out, 3 in"),
            (OLD, "query: client, sizes", "as granted"),
            (ALL, "query: server, reads and atomics", "3 out, 1 in"),
            (OLD, "query: server, sizes", "as granted"),
            (NEWER, "queue pair: 5 sends are granted as", "5"),
            (NEWER, "queue pair: 5 receives are granted as", "5"),
            (NEWER, "shared receive queue: 5 receives are granted as", "5"),
        ],
    },
    Difference {
        title: "A place in a queue is free when its completion is polled",
        answers: &[
            (ALL, "full queue: all done and none polled, one more", "ENOMEM"),
        ],
    },
    Difference {
        title: "Ports are TCP's.",
        answers: &[
            (ALL, "bind: to a port of every address that is listened on at one", "EADDRINUSE"),
            (ALL, "IPv6, bind: to a port of every address that is listened on at one", "EADDRINUSE"),
        ],
    },
    Difference {
        title: "Addresses resolve at once",
        answers: &[
            (ALL, "nobody there: resolved within half a second", "ADDR_RESOLVED"),
        ],
    },
    Difference {
        title: "Memory may be of huge pages",
        answers: &[
            (NEWER, "registration with rights: huge pages", "ok, one key"),
        ],
    },
    Difference {
        title: "Registration is that of newer kernels.",
        answers: &[
            (OLD, "registration: memory that may not be read", "EFAULT"),
            (OLD, "registration with rights: none", "ok, one key"),
            (OLD, "registration with rights: zero-based", "EOPNOTSUPP"),
            (OLD, "registration with rights: on demand", "EOPNOTSUPP"),
            (OLD, "registration with rights: flush globally", "EOPNOTSUPP"),
            (OLD, "registration with rights: flush globally without local write", "EOPNOTSUPP"),
            (OLD, "registration with rights: flush persistently", "EOPNOTSUPP"),
            (OLD, "registration with rights: flush both ways", "EOPNOTSUPP"),
        ],
    },
    Difference {
        title: "Destroying a queue pair takes its completions with it",
        answers: &[
            (ALL, "a queue pair is destroyed: its flushed receives that nobody polled", "0"),
        ],
    },
    Difference {
        title: "Errors are solicited.",
        answers: &[
            (ALL, "error events: armed for solicited ones, a request fails", "1"),
            (NEWER, "error events: armed for solicited ones, a receive is flushed", "1"),
        ],
    },
    Difference {
        title: "A receive that is posted in the error state is flushed",
        answers: &[
            (ALL, "state: ERR, its completion", "#2 WR_FLUSH_ERR"),
        ],
    },
    Difference {
        title: "Only receivers are told of immediate data.",
        answers: &[
            (ALL, "operation: send with immediate", "#1 SEND len 16"),
            (ALL, "operation: write with immediate", "#1 RDMA_WRITE len 16"),
            (ALL, "operation of length 0: send with immediate", "#2 SEND len 0"),
            (ALL, "operation of length 0: write with immediate and no key", "#5 RDMA_WRITE len 0"),
            (ALL, "inline: nothing", "#3 SEND len 0"),
        ],
    },
    Difference {
        title: "Only datagrams have a global route header",
        answers: &[
            (ALL, "operation: send, receive's other fields", "vendor_err 0, src_qp 0, slid 0, sl 0, path bits 0, pkey 0, GRH false"),
            (ALL, "operation: send with immediate, receive's other fields", "vendor_err 0, src_qp 0, slid 0, sl 0, path bits 0, pkey 0, GRH false"),
            (ALL, "operation: write with immediate, receive's other fields", "vendor_err 0, src_qp 0, slid 0, sl 0, path bits 0, pkey 0, GRH false"),
        ],
    },
    Difference {
        title: "An atomic's completion tells 8 bytes",
        answers: &[
            (ALL, "local fault: fetch and add with room for 16 bytes", "#1 FETCH_ADD len 8, RTS; server: nothing, RTS"),
        ],
    },
    Difference {
        title: "An answer asks for no more than was offered",
        answers: &[
            (ALL, "parameters: more than the client asked for, answer", "ESTABLISHED, data 0 of 196, resources 4, depth 16, flow control 1, retry 0, rnr retry 7, srq 0, qp its number, listener false"),
        ],
    },
    Difference {
        title: "Local faults are told as such",
        answers: &[
            (ALL, "local fault: send, a key that is not there", "#1 LOC_PROT_ERR, ERR; server: nothing, RTS"),
            (ALL, "local fault: send, a region of another domain", "#1 LOC_PROT_ERR, ERR; server: nothing, RTS"),
            (ALL, "local fault: send, a region that is gone", "#1 LOC_PROT_ERR, ERR; server: nothing, RTS"),
            (ALL, "local fault: write, a key that is not there", "#1 LOC_PROT_ERR, ERR; server: nothing, RTS"),
            (ALL, "local fault: write, a region of another domain", "#1 LOC_PROT_ERR, ERR; server: nothing, RTS"),
            (ALL, "local fault: write, a region that is gone", "#1 LOC_PROT_ERR, ERR; server: nothing, RTS"),
            (ALL, "local fault: write, the second range's key is not there", "#1 LOC_PROT_ERR, ERR; server: nothing, RTS"),
            (NEWER, "local fault: send, one byte too far", "#1 LOC_PROT_ERR, ERR; server: nothing, RTS"),
            (NEWER, "local fault: write, one byte too far", "#1 LOC_PROT_ERR, ERR; server: nothing, RTS"),
        ],
    },
    Difference {
        title: "A message longer than its receive",
        answers: &[
            (ALL, "receive's fault: a message one byte longer", "#1 REM_INV_REQ_ERR, ERR; server: #49 LOC_LEN_ERR, #50 WR_FLUSH_ERR, ERR"),
            (ALL, "receive's fault: a message that is longer than its two ranges", "#1 REM_INV_REQ_ERR, ERR; server: #49 LOC_LEN_ERR, #50 WR_FLUSH_ERR, ERR"),
            (ALL, "receive's fault: a byte to a receive without ranges", "#1 REM_INV_REQ_ERR, ERR; server: #49 LOC_LEN_ERR, #50 WR_FLUSH_ERR, ERR"),
            (ALL, "sharing: the second sends too much", "#1 REM_INV_REQ_ERR; #4 LOC_LEN_ERR"),
        ],
    },
    Difference {
        title: "A receive whose memory cannot be written",
        answers: &[
            (ALL, "receive's fault: a key that is not there", "#1 REM_OP_ERR, ERR; server: #49 LOC_PROT_ERR, #50 WR_FLUSH_ERR, ERR"),
            (ALL, "receive's fault: one byte too far", "#1 REM_OP_ERR, ERR; server: #49 LOC_PROT_ERR, #50 WR_FLUSH_ERR, ERR"),
            (ALL, "receive's fault: a region without local write", "#1 REM_OP_ERR, ERR; server: #49 LOC_PROT_ERR, #50 WR_FLUSH_ERR, ERR"),
            (ALL, "receive's fault: a region that is gone", "#1 REM_OP_ERR, ERR; server: #49 LOC_PROT_ERR, #50 WR_FLUSH_ERR, ERR"),
            (ALL, "receive's fault: a region of another domain", "#1 REM_OP_ERR, ERR; server: #49 LOC_PROT_ERR, #50 WR_FLUSH_ERR, ERR"),
        ],
    },
    Difference {
        title: "A write with immediate that is refused",
        answers: &[
            (ALL, "remote fault: write with immediate, a key that is not there", "#1 REM_ACCESS_ERR, ERR; server: #50 LOC_ACCESS_ERR, ERR"),
            (ALL, "remote fault: write with immediate, a key whose low byte is wrong", "#1 REM_ACCESS_ERR, ERR; server: #50 LOC_ACCESS_ERR, ERR"),
            (ALL, "remote fault: write with immediate, 8 bytes before its region", "#1 REM_ACCESS_ERR, ERR; server: #50 LOC_ACCESS_ERR, ERR"),
            (ALL, "remote fault: write with immediate, 8 bytes beyond its region", "#1 REM_ACCESS_ERR, ERR; server: #50 LOC_ACCESS_ERR, ERR"),
            (ALL, "remote fault: write with immediate, a region of another domain", "#1 REM_ACCESS_ERR, ERR; server: #50 LOC_ACCESS_ERR, ERR"),
            (ALL, "remote fault: write with immediate, a region that is gone", "#1 REM_ACCESS_ERR, ERR; server: #50 LOC_ACCESS_ERR, ERR"),
            (ALL, "remote fault: write with immediate, a region without remote rights", "#1 REM_ACCESS_ERR, ERR; server: #50 LOC_ACCESS_ERR, ERR"),
            (ALL, "remote fault: write with immediate, all rights but that to write", "#1 REM_ACCESS_ERR, ERR; server: #50 LOC_ACCESS_ERR, ERR"),
        ],
    },
    Difference {
        title: "The peer checks how an atomic's place is aligned",
        answers: &[
            (ALL, "remote fault: compare and swap, not aligned", "#1 REM_INV_REQ_ERR, ERR; server: #50 WR_FLUSH_ERR, ERR"),
            (ALL, "remote fault: fetch and add, not aligned", "#1 REM_INV_REQ_ERR, ERR; server: #50 WR_FLUSH_ERR, ERR"),
        ],
    },
    Difference {
        title: "A read that no resource was agreed on for",
        answers: &[
            (ALL, "resources: a read where none was agreed on", "#1 REM_INV_REQ_ERR"),
        ],
    },
    Difference {
        title: "What means nothing is not posted",
        answers: &[
            (ALL, "post: an inline read", "EINVAL when posted"),
            (ALL, "post: more than the longest message", "EINVAL when posted"),
            (ALL, "post: flush without a builder", "EINVAL when posted"),
            (ALL, "post: atomic write without a builder", "EINVAL when posted"),
            (ALL, "post: invalidation of a key", "EINVAL when posted"),
            (ALL, "post: segmentation", "EINVAL when posted"),
            (ALL, "post: a driver's own", "EINVAL when posted"),
            (ALL, "post: an opcode that nobody knows", "EINVAL when posted"),
        ],
    },
    Difference {
        title: "Builders take what they are given",
        answers: &[
            (ALL, "builder of inline data: write of a list", "#2 RDMA_WRITE len 9"),
            (ALL, "builder of inline data: write of a list, memory", "two partsnside"),
            (ALL, "builder of inline data: write without the flag", "#7 RDMA_WRITE len 7"),
            (ALL, "builder of ranges: two of different lengths", "#1 RDMA_WRITE len 9"),
            (ALL, "builder of ranges: two of different lengths, memory", "abcklmnop......."),
        ],
    },
    Difference {
        title: "A completion queue that overflows says so once",
        answers: &[
            (ALL, "queue that is too small: events", "CQ_ERR once, QP_FATAL once"),
        ],
    },
    Difference {
        title: "A refused request is told of at the end that refused it",
        answers: &[
            (&[Bookworm, Trixie], "asynchronous event: after a request that was refused", "QP_ACCESS_ERR"),
        ],
    },
    Difference {
        title: "The last receive of a queue pair that shares its receives",
        answers: &[
            (OLD, "asynchronous event: after the error state of one that shares its receives", "QP_LAST_WQE_REACHED"),
        ],
    },
    Difference {
        title: "The connection manager leads the queue pair.",
        answers: &[
            (ALL, "change of state: RTS to SQD", "EOPNOTSUPP"),
        ],
    },
];
