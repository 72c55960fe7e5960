//! Transfers longer than a message can be: refused here, before anything is posted, and never cut to what fits.

use std::sync::Arc;

use rpma::prelude::*;
use rpma::sys::testing::{Call, CountingProvider};
use rpma::{ErrorCode, Ranges, Source};

use crate::support::{LIMIT, Pair, cfg, is_soft, listen, peer, peer_over, provider, region, remote, still_works};

/// What every operation with a length is.
const TRANSFERS: Usage =
    Usage::READ_SRC.union(Usage::READ_DST).union(Usage::WRITE_SRC).union(Usage::WRITE_DST).union(Usage::SEND).union(Usage::RECV);

/// Ranges that one request of these tests may have: as many as a shared receive queue of soft-RoCE takes.
const RANGES: u32 = 27;

/// A pair, and all else that takes requests with a length, on one counted device.
struct Posting {
    counting: Arc<CountingProvider>,
    pair: Pair,
    srq: Srq,
    request: ConnReq<Outgoing>,
    pending: PendingConn,
    _incoming: ConnReq<Incoming>,
    _endpoint: Endpoint,
}

impl Posting {
    fn new() -> Self {
        let counting = CountingProvider::new(provider());
        let counted = peer_over(&counting.provider());
        let cfg = cfg().send_sge(RANGES).recv_sge(RANGES);
        let pair = Pair::connect(&counted, &cfg, &peer(), &cfg);
        let srq = counted.new_srq(&SrqCfg::new().recv_sge(RANGES)).unwrap();
        let (endpoint, addr) = listen(pair.server.peer());
        let pending = ConnReq::new(&counted, addr, &cfg).unwrap().connect(&[]).unwrap();
        let incoming = endpoint.next_conn_req(&cfg, LIMIT).unwrap();
        let request = ConnReq::new(&counted, addr, &cfg).unwrap();
        Self { counting, pair, srq, request, pending, _incoming: incoming, _endpoint: endpoint }
    }

    /// The longest message that the client's port carries.
    fn max_bytes(&self) -> u32 {
        self.pair.client.peer().device().context().query_port(1).unwrap().max_msg_sz
    }

    fn posts(&self) -> u64 {
        let calls = [Call::post_send, Call::post_recv, Call::post_srq_recv, Call::wr_complete];
        calls.iter().map(|&call| self.counting.calls(call)).sum()
    }

    /// Every operation with these ranges here, and as many bytes there where it has another side, is refused as too long; nothing is
    /// posted.
    fn is_refused(&self, form: &str, here: Ranges<'_>, len_bytes: u64, target: RemoteMr) {
        let before = self.posts();
        // Only the length is made up.
        let there = MrDescriptor::new(target.addr(), len_bytes, target.rkey(), TRANSFERS).unwrap();
        let there = RemoteMr::from(there).all();
        let (client, signal) = (&self.pair.client, Signal::Always);
        let (mut batch, source) = (client.batch(), Source::from(here));
        let refusals = [
            ("read", client.read(here, there, signal, 1)),
            ("write", client.write(there, source, signal, 2)),
            ("write with immediate", client.write_with_imm(there, source, 3, signal, 3)),
            ("send", client.send(source, signal, 4)),
            ("send with immediate", client.send_with_imm(source, 5, signal, 5)),
            ("receive", client.recv(here, 6)),
            ("receive of a pending connection", self.pending.recv(here, 7)),
            ("receive of a request", self.request.recv(here, 8)),
            ("receive of a shared queue", self.srq.recv(here, 9)),
            ("read in a batch", batch.read(here, there, signal, 10).map(drop)),
            ("write in a batch", batch.write(there, source, signal, 11).map(drop)),
            ("write with immediate in a batch", batch.write_with_imm(there, source, 12, signal, 12).map(drop)),
            ("send in a batch", batch.send(source, signal, 13).map(drop)),
            ("send with immediate in a batch", batch.send_with_imm(source, 14, signal, 14).map(drop)),
        ];
        assert!(batch.is_empty());
        for (what, refusal) in refusals {
            let Err(error) = refusal else { panic!("{what} of {form}: taken") };
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{what} of {form}: {error:?}");
            let PostError::TooLong { len_bytes: told, max_bytes, .. } = error else { panic!("{what} of {form}: {error:?}") };
            assert_eq!((told as u64, max_bytes), (len_bytes, self.max_bytes()), "{what} of {form}");
        }
        assert_eq!(self.posts(), before, "{form}");
    }

    /// As [`is_refused`](Self::is_refused), of bytes that the request is to carry itself.
    fn is_refused_inline(&self, bytes: &[u8], target: RemoteMr) {
        let before = self.posts();
        let there = MrDescriptor::new(target.addr(), bytes.len() as u64, target.rkey(), TRANSFERS).unwrap();
        let there = RemoteMr::from(there).all();
        let (client, signal) = (&self.pair.client, Signal::Always);
        let mut batch = client.batch();
        let refusals = [
            client.write(there, Inline(bytes), signal, 1),
            client.write_with_imm(there, Inline(bytes), 2, signal, 2),
            client.send(Inline(bytes), signal, 3),
            client.send_with_imm(Inline(bytes), 4, signal, 4),
            batch.write(there, Inline(bytes), signal, 5).map(drop),
            batch.write_with_imm(there, Inline(bytes), 6, signal, 6).map(drop),
            batch.send(Inline(bytes), signal, 7).map(drop),
            batch.send_with_imm(Inline(bytes), 8, signal, 8).map(drop),
        ];
        for refusal in refusals {
            let error = refusal.unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument);
            assert!(matches!(error, PostError::InlineTooLong { len_bytes, .. } if len_bytes == bytes.len()), "{error:?}");
        }
        assert!(batch.is_empty());
        assert_eq!(self.posts(), before);
    }
}

/// A transfer of so many bytes, which is too long, is refused in every form that the device under test has memory for.
fn is_refused_in_every_form(posting: &Posting, len_bytes: usize) {
    let here = posting.pair.client.peer();
    let target = region(posting.pair.server.peer(), 8, TRANSFERS);
    let (far, len) = (remote(&target), len_bytes as u64);

    // All devices have room for a part of it, and take that many times.
    let part_bytes = len_bytes.div_ceil(RANGES as usize);
    let part = region(here, part_bytes, TRANSFERS);
    let mut parts = [part.all(); RANGES as usize];
    parts[0] = part.slice(..len_bytes - (RANGES as usize - 1) * part_bytes).unwrap();
    posting.is_refused("27 ranges, none of them long", (&parts).into(), len, far);

    // The software provider pins nothing, so there it costs nothing to have all of it.
    if is_soft() {
        let pages = AnonPages::new(len_bytes).unwrap();
        posting.is_refused_inline(pages.as_slice(), far);
        let whole = here.register(pages, TRANSFERS).unwrap();
        let all = whole.all();
        let (bytes, rest) = (whole.slice(..8).unwrap(), whole.slice(8..).unwrap());
        posting.is_refused("one range", all.into(), len, far);
        let lists = [
            ("a list of one", vec![all]),
            ("two ranges", vec![bytes, rest]),
            ("two ranges and nothing", vec![rest, LocalSlice::null(), bytes]),
        ];
        for (form, list) in lists {
            posting.is_refused(form, (&list[..]).into(), len, far);
        }
    }
    still_works(&posting.pair);
}

#[test]
fn transfer_of_one_byte_more_than_the_port_carries_is_refused_in_every_form() {
    let posting = Posting::new();
    is_refused_in_every_form(&posting, posting.max_bytes() as usize + 1);
}

#[test]
fn transfer_of_more_than_32_bits_can_tell_is_refused_in_every_form() {
    // 8 bytes more than 32 bits can tell: cut, they would be 8.
    is_refused_in_every_form(&Posting::new(), (1 << 32) + 8);
}
