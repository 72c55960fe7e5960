//! Many requests of the send queue with one doorbell.
#![expect(unsafe_code, reason = "links requests for ibv_post_send, and calls the extended builders")]

use std::io;
use std::ptr::null_mut;

use super::qp::{begin, inline_sge, num_sge, send_wr};
use super::{PostError, Qp, SendOp, SendOptions, Taken};
use crate::bindings::*;
use crate::provider::{QpExOps, WrBuilders};
use crate::ret::errno_ret;

/// What a request of the send queue does, and with what.
#[derive(Debug, Clone, Copy)]
pub enum Work<'a> {
    /// As [`Qp::post_send`].
    #[expect(missing_docs, reason = "the fields are the arguments of that")]
    Ranges { op: SendOp, sges: &'a [ibv_sge] },
    /// As [`Qp::post_send_inline`].
    #[expect(missing_docs, reason = "the fields are the arguments of that")]
    Inline { op: SendOp, data: &'a [u8] },
    /// As [`Qp::post_flush`].
    #[expect(missing_docs, reason = "the fields are the arguments of that")]
    Flush { remote_addr: u64, rkey: u32, len: usize, whole_region: bool, placement: u8 },
    /// As [`Qp::post_atomic_write`].
    #[expect(missing_docs, reason = "the fields are the arguments of that")]
    AtomicWrite { remote_addr: u64, rkey: u32, value: [u8; 8] },
}

/// A request of a batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchRequest<'a> {
    /// What it does.
    pub work: Work<'a>,
    /// How it is posted.
    pub options: SendOptions,
}

/// Why a batch was not posted, or not all of it.
#[derive(Debug)]
pub struct BatchError {
    /// The provider's errno, as in [`PostError`].
    pub source: io::Error,
    /// So many of its first requests were taken.
    pub taken: usize,
    /// Whether those behind them may run all the same.
    pub rest: Taken,
}

impl BatchError {
    /// Nothing was given to the provider.
    fn before(source: io::Error) -> Self {
        Self { source, taken: 0, rest: Taken::No }
    }
}

/// How a request can be given to the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ways {
    /// In a linked list, by `ibv_post_send(3)`.
    list: bool,
    /// Between `ibv_wr_start(3)` and `ibv_wr_complete(3)`.
    built: bool,
}

impl Ways {
    fn of(work: &Work<'_>, has_builders: bool) -> Self {
        match work {
            Work::Flush { .. } | Work::AtomicWrite { .. } => Self { list: false, built: true },
            // The builder of soft-RoCE takes the first range's length for that of each (rdma-core before
            // its pull request 1744), so it may only be given ranges of one length.
            Work::Ranges { sges, .. } if sges.iter().any(|sge| sge.length != sges[0].length) => Self { list: true, built: false },
            Work::Ranges { .. } | Work::Inline { .. } => Self { list: true, built: has_builders },
        }
    }

    fn and(self, other: Self) -> Self {
        Self { list: self.list && other.list, built: self.built && other.built }
    }

    fn is_none(self) -> bool {
        !self.list && !self.built
    }
}

/// How many of the first requests can go together, and in which ways.
fn first_run(requests: &[BatchRequest<'_>], has_builders: bool) -> (usize, Ways) {
    let mut ways = Ways { list: true, built: true };
    for (n, request) in requests.iter().enumerate() {
        let both = ways.and(Ways::of(&request.work, has_builders));
        if both.is_none() {
            return (n, ways);
        }
        ways = both;
    }
    (requests.len(), ways)
}

impl Qp {
    /// Posts one request: as the method that the work is named after.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the connection stays intact.
    pub fn post(&self, work: Work<'_>, options: SendOptions) -> Result<(), PostError> {
        match work {
            Work::Ranges { op, sges } => self.post_send(op, sges, options),
            Work::Inline { op, data } => self.post_send_inline(op, data, options),
            Work::Flush { remote_addr, rkey, len, whole_region, placement } => {
                self.post_flush(remote_addr, rkey, len, whole_region, placement, options)
            }
            Work::AtomicWrite { remote_addr, rkey, value } => self.post_atomic_write(remote_addr, rkey, value, options),
        }
    }

    /// Posts many requests with one doorbell: one `ibv_wr_start(3)` … `ibv_wr_complete(3)` on a queue pair with native operations, else
    /// one `ibv_post_send(3)` of a linked list.
    ///
    /// A request with ranges of different lengths goes by `ibv_post_send(3)` always, a native operation never: if a batch has both, there
    /// is a doorbell for each change from one to the other.
    ///
    /// # Errors
    ///
    /// [`BatchError`]; the connection stays intact. What is wrong with the arguments of any request is found before the first one is
    /// posted.
    pub fn post_batch(&self, requests: &[BatchRequest<'_>]) -> Result<(), BatchError> {
        self.check_process().map_err(BatchError::before)?;
        for request in requests {
            self.check(&request.work).map_err(BatchError::before)?;
        }
        let builders = self.ops.ex.and_then(|ex| Some((ex, ex.builders?)));
        let mut taken = 0;
        while taken < requests.len() {
            let rest = &requests[taken..];
            let (len, ways) = first_run(rest, builders.is_some());
            let run = &rest[..len];
            let posted = match (self.ops.ex, ways.built) {
                (Some(ex), true) => self.post_built(ex, run),
                _ => self.post_list(run),
            };
            posted.map_err(|e| BatchError { taken: taken + e.taken, ..e })?;
            taken += len;
        }
        Ok(())
    }

    /// What not every driver checks.
    fn check(&self, work: &Work<'_>) -> io::Result<()> {
        let granted = self.granted();
        let has = |native: bool| if native { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) };
        match *work {
            Work::Ranges { sges, .. } => num_sge(sges, granted.send_sge).map(drop),
            Work::Inline { op, data } => inline_sge(op, data, granted.inline_bytes).map(drop),
            Work::Flush { .. } => has(self.has_flush()),
            Work::AtomicWrite { .. } => has(self.has_atomic_write()),
        }
    }

    /// Posts a run without native operations, whose requests were checked.
    fn post_list(&self, run: &[BatchRequest<'_>]) -> Result<(), BatchError> {
        let granted = self.granted();
        // The ranges of inline data: one place for each request, none of which moves.
        let mut inline = vec![ibv_sge::default(); run.len()];
        for (sge, request) in inline.iter_mut().zip(run) {
            if let Work::Inline { op, data } = request.work {
                *sge = inline_sge(op, data, granted.inline_bytes).map_err(BatchError::before)?;
            }
        }
        let wrs = run.iter().zip(&inline).map(|(&BatchRequest { work, options }, inline)| match work {
            Work::Ranges { op, sges } => Ok(send_wr(op, sges, num_sge(sges, granted.send_sge)?, options, 0)),
            Work::Inline { op, .. } => Ok(send_wr(op, std::slice::from_ref(inline), 1, options, IBV_SEND_INLINE)),
            Work::Flush { .. } | Work::AtomicWrite { .. } => Err(io::Error::from(io::ErrorKind::Unsupported)),
        });
        let mut wrs = wrs.collect::<io::Result<Vec<_>>>().map_err(BatchError::before)?;
        let (first, count) = (wrs.as_mut_ptr(), wrs.len());
        for n in 1..count {
            // SAFETY: within the array of `count` requests.
            let before = unsafe { first.add(n - 1) };
            // SAFETY: a request of the array, which nobody else looks at.
            unsafe { (*before).next = first.wrapping_add(n) };
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; `first` is a list of requests that ends with a null `next`, each with as many ranges as it
        // says; the provider only reads them. Inline ranges are slices that outlive the call; others are checked by the device
        // against their keys.
        let rc = unsafe { (self.ops.post_send)(self.raw, first, &raw mut bad) };
        errno_ret(rc).map_err(|source| {
            // `bad` is compared, never followed: providers leave it null even when they fail, and may have taken the requests then.
            let distance = bad.addr().checked_sub(first.addr()).filter(|_| !bad.is_null());
            match distance.map(|bytes| bytes / size_of::<ibv_send_wr>()).filter(|&n| n < count) {
                Some(taken) => BatchError { source, taken, rest: Taken::No },
                None => BatchError { source, taken: 0, rest: Taken::Unknown },
            }
        })
    }

    /// Posts a run of what can be built, whose requests were checked.
    fn post_built(&self, ex: QpExOps, run: &[BatchRequest<'_>]) -> Result<(), BatchError> {
        let build = || {
            for request in run {
                // SAFETY: between start and complete of this live queue pair, which has the builders of what is in the run.
                unsafe { build_one(ex, request) };
            }
        };
        // All or nothing: the doorbell is rung for the whole run, and what a builder finds wrong undoes it.
        self.in_one_batch(ex, build).map_err(|PostError { source, taken }| BatchError { source, taken: 0, rest: taken })
    }
}

/// Builds one request. One that the queue pair has no builder for is left out: callers have looked.
///
/// # Safety
///
/// The queue pair is live, and a batch was started on it by this thread.
unsafe fn build_one(ex: QpExOps, request: &BatchRequest<'_>) {
    let flags = if matches!(request.work, Work::Inline { .. }) { IBV_SEND_INLINE } else { 0 };
    // SAFETY: the contract of this function.
    unsafe { begin(ex, request.options, flags) };
    match (request.work, ex) {
        (Work::Flush { remote_addr, rkey, len, whole_region, placement }, QpExOps { qp_ex, wr_flush: Some(flush), .. }) => {
            let level = u8::from(whole_region);
            // SAFETY: between start and complete (contract above) of a queue pair that was made with the flag for it.
            unsafe { flush(qp_ex, rkey, remote_addr, len, placement, level) };
        }
        (Work::AtomicWrite { remote_addr, rkey, value }, QpExOps { qp_ex, wr_atomic_write: Some(atomic_write), .. }) => {
            // SAFETY: as above; the builder copies the 8 bytes.
            unsafe { atomic_write(qp_ex, rkey, remote_addr, value.as_ptr().cast()) };
        }
        (Work::Ranges { op, sges }, QpExOps { qp_ex, builders: Some(builders), .. }) => {
            // SAFETY: the contract of this function.
            unsafe { build_op(qp_ex, &builders, op) };
            match sges {
                // SAFETY: behind an operation that takes ranges; the device checks them against their keys.
                [one] => unsafe { (builders.wr_set_sge)(qp_ex, one.lkey, one.addr, one.length) },
                // SAFETY: as above; the builder copies so many ranges.
                more => unsafe { (builders.wr_set_sge_list)(qp_ex, more.len(), more.as_ptr()) },
            }
        }
        (Work::Inline { op, data }, QpExOps { qp_ex, builders: Some(builders), .. }) => {
            // SAFETY: the contract of this function.
            unsafe { build_op(qp_ex, &builders, op) };
            // SAFETY: behind an operation that takes data; the builder copies so many bytes of the slice.
            unsafe { (builders.wr_set_inline_data)(qp_ex, data.as_ptr().cast_mut().cast(), data.len()) };
        }
        _ => debug_assert!(false, "no builder for {request:?}"),
    }
}

/// # Safety
///
/// The queue pair is live and has these builders, and a batch was started on it by this thread.
unsafe fn build_op(qp_ex: *mut ibv_qp_ex, builders: &WrBuilders, op: SendOp) {
    match op {
        // SAFETY: the contract of this function.
        SendOp::Read { remote_addr, rkey } => unsafe { (builders.wr_rdma_read)(qp_ex, rkey, remote_addr) },
        // SAFETY: as above.
        SendOp::Write { remote_addr, rkey } => unsafe { (builders.wr_rdma_write)(qp_ex, rkey, remote_addr) },
        // SAFETY: as above.
        SendOp::WriteWithImm { remote_addr, rkey, imm } => unsafe {
            (builders.wr_rdma_write_imm)(qp_ex, rkey, remote_addr, imm.to_be());
        },
        // SAFETY: as above.
        SendOp::Send => unsafe { (builders.wr_send)(qp_ex) },
        // SAFETY: as above.
        SendOp::SendWithImm { imm } => unsafe { (builders.wr_send_imm)(qp_ex, imm.to_be()) },
    }
}

const _: () = assert!(IBV_FLUSH_RANGE == 0 && IBV_FLUSH_MR == 1, "a level is whether it is the whole region");

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(length: u32) -> ibv_sge {
        ibv_sge { length, ..ibv_sge::default() }
    }

    const FLUSH: Work<'_> = Work::Flush { remote_addr: 0, rkey: 0, len: 0, whole_region: true, placement: 1 };

    fn runs(works: &[Work<'_>], has_builders: bool) -> Vec<(usize, bool)> {
        let requests: Vec<_> = works.iter().map(|&work| BatchRequest { work, options: SendOptions::default() }).collect();
        let mut rest = &requests[..];
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (len, ways) = first_run(rest, has_builders);
            found.push((len, ways.built));
            rest = &rest[len..];
        }
        found
    }

    #[test]
    fn batch_with_builders_is_one_run_and_without_them_one_list() {
        let (one, equal) = ([sge(8)], [sge(8), sge(8)]);
        let ranges = |sges| Work::Ranges { op: SendOp::Send, sges };
        let works = [ranges(&[]), ranges(&one), ranges(&equal), Work::Inline { op: SendOp::Send, data: b"x" }];
        assert_eq!(runs(&works, true), [(4, true)]);
        assert_eq!(runs(&works, false), [(4, false)]);
        assert_eq!(runs(&[works[1], FLUSH, works[3]], true), [(3, true)]);
    }

    #[test]
    fn ranges_of_different_lengths_are_never_built_and_native_operations_always() {
        let unequal = [sge(8), sge(9)];
        let one = [sge(8)];
        let (ranges, single) = (Work::Ranges { op: SendOp::Send, sges: &unequal }, Work::Ranges { op: SendOp::Send, sges: &one });
        assert_eq!(runs(&[single, ranges, single], true), [(3, false)]);
        assert_eq!(runs(&[single, ranges, single, FLUSH, single, ranges], true), [(3, false), (2, true), (1, false)]);
        // A queue pair with a native operation and without the other builders.
        assert_eq!(runs(&[single, FLUSH, single], false), [(1, false), (1, true), (1, false)]);
    }
}
