//! What a request works on at this end: ranges of registered memory, or bytes that it carries inside itself.

use std::borrow::Cow;
use std::slice::from_ref;
use std::sync::Arc;

use rpma_mr::sys::bindings::ibv_sge;
use rpma_mr::{LocalSlice, Usage};

use crate::completion::Operation;
use crate::peer::Peer;
use crate::post_error::PostError;

/// Where bytes go to, or come from, at this end: one slice of a registered region, or several, one behind the other.
///
/// Posting calls take anything that becomes one: a [`LocalSlice`], or a reference to an array or slice of them. At most as many as
/// [`ConnCfg::send_sge`](crate::ConnCfg::send_sge) or [`recv_sge`](crate::ConnCfg::recv_sge) asks for, or the device granted beyond that.
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// let cfg = ConnCfg::new().send_sge(3);
/// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
/// # let (memory, there) = rpma::testing::target(&server, Usage::READ_SRC)?;
/// # memory.write_at(0, b"header, payload, trailer")?;
/// # let header = peer.register(AnonPages::new(8)?, Usage::READ_DST)?;
/// # let payload = peer.register(AnonPages::new(8)?, Usage::READ_DST)?;
/// let parts = [header.slice(..8)?, payload.slice(..8)?]; // of two regions
/// conn.read(&parts, there.slice(0..16)?, Signal::Always, 1)?;
/// conn.cq().wait(Duration::from_secs(10))?.result()?;
/// let mut bytes = [0; 8];
/// payload.read_at(0, &mut bytes)?;
/// assert_eq!(&bytes, b"payload,");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Ranges<'a> {
    /// One slice.
    One(LocalSlice<'a>),
    /// Several; none at all is a transfer of 0 bytes.
    Many(&'a [LocalSlice<'a>]),
}

impl<'a> Ranges<'a> {
    fn as_slice(&self) -> &[LocalSlice<'a>] {
        match self {
            Self::One(slice) => from_ref(slice),
            Self::Many(slices) => slices,
        }
    }

    /// The length of all together. More than a number can tell is more than any transfer carries.
    pub(crate) fn len_bytes(&self) -> usize {
        self.as_slice().iter().fold(0, |sum, slice| sum.saturating_add(slice.len_bytes()))
    }
}

/// Bytes that a request carries inside itself: they are copied before the call returns, and need no registration. At most as many as
/// [`ConnCfg::inline_bytes`](crate::ConnCfg::inline_bytes) asks for, or the device granted beyond that.
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let inbox = server.peer().register(AnonPages::new(512)?, Usage::RECV)?;
/// # server.recv(inbox.all(), 1)?;
/// conn.send(Inline(b"hello"), Signal::OnError, 1)?; // no region, no copy to keep
/// # let received = server.cq().wait(Duration::from_secs(10))?.received()?.ok_or("a receive")?;
/// assert_eq!(received.len_bytes, 5); // at the peer
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nothing can be read into them; this does not compile:
///
/// ```compile_fail,E0277
/// # use rpma_cm::{Conn, Inline, Signal};
/// # fn f(conn: &Conn, there: rpma_mr::RemoteSlice) {
/// conn.read(Inline(b"hello"), there, Signal::Always, 1);
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inline<'a>(pub &'a [u8]);

/// What a write or a message consists of: [`Ranges`] of registered memory, or [`Inline`] bytes.
///
/// Posting calls take anything that becomes one: a [`LocalSlice`], a reference to an array or slice of them, [`Inline`].
///
/// ```
/// use rpma::{Source, prelude::*};
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
/// # let here = conn.peer().register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
/// let sources: [Source; 2] = [Inline(b"8 bytes!").into(), here.slice(0..8)?.into()];
/// for (source, n) in sources.into_iter().zip(0..) {
///     conn.write(there.slice_at(8 * n, 8)?, source, Signal::Always, n)?;
///     assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), n);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// From registered memory, when the request is carried out.
    Ranges(Ranges<'a>),
    /// Copied when it is posted.
    Inline(Inline<'a>),
}

impl Source<'_> {
    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Ranges(ranges) => ranges.len_bytes(),
            Self::Inline(Inline(bytes)) => bytes.len(),
        }
    }
}

impl<'a> From<LocalSlice<'a>> for Ranges<'a> {
    fn from(slice: LocalSlice<'a>) -> Self {
        Self::One(slice)
    }
}

impl<'a> From<&'a [LocalSlice<'a>]> for Ranges<'a> {
    fn from(slices: &'a [LocalSlice<'a>]) -> Self {
        Self::Many(slices)
    }
}

impl<'a, const N: usize> From<&'a [LocalSlice<'a>; N]> for Ranges<'a> {
    fn from(slices: &'a [LocalSlice<'a>; N]) -> Self {
        Self::Many(slices)
    }
}

impl<'a> From<Ranges<'a>> for Source<'a> {
    fn from(ranges: Ranges<'a>) -> Self {
        Self::Ranges(ranges)
    }
}

impl<'a> From<LocalSlice<'a>> for Source<'a> {
    fn from(slice: LocalSlice<'a>) -> Self {
        Self::Ranges(slice.into())
    }
}

impl<'a> From<&'a [LocalSlice<'a>]> for Source<'a> {
    fn from(slices: &'a [LocalSlice<'a>]) -> Self {
        Self::Ranges(slices.into())
    }
}

impl<'a, const N: usize> From<&'a [LocalSlice<'a>; N]> for Source<'a> {
    fn from(slices: &'a [LocalSlice<'a>; N]) -> Self {
        Self::Ranges(slices.into())
    }
}

impl<'a> From<Inline<'a>> for Source<'a> {
    fn from(inline: Inline<'a>) -> Self {
        Self::Inline(inline)
    }
}

/// The local side of a request that passed its checks.
#[derive(Debug, Clone)]
pub(crate) enum Payload<'a> {
    Sges(Sges),
    Inline(Cow<'a, [u8]>),
}

impl Payload<'_> {
    /// The same, with a copy of what it borrowed.
    pub(crate) fn into_owned(self) -> Payload<'static> {
        match self {
            Self::Sges(sges) => Payload::Sges(sges),
            Self::Inline(bytes) => Payload::Inline(Cow::Owned(bytes.into_owned())),
        }
    }
}

/// Ranges as verbs take them. Most requests have one, which needs no allocation.
#[derive(Debug, Clone)]
pub(crate) enum Sges {
    One(Option<ibv_sge>),
    Many(Vec<ibv_sge>),
}

impl Sges {
    pub(crate) fn as_slice(&self) -> &[ibv_sge] {
        match self {
            Self::One(one) => one.as_slice(),
            Self::Many(many) => many,
        }
    }
}

/// What the local side of a request is checked against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) max_message_bytes: u32,
    /// Ranges of one request, as the device granted.
    pub(crate) sges: u32,
}

/// Checks the local side of a transfer.
pub(crate) fn local_side(operation: Operation, ranges: Ranges<'_>, needs: Usage, limits: Limits<'_>) -> Result<Sges, PostError> {
    // A null slice adds nothing, and is of no region.
    let mut slices = ranges.as_slice().iter().filter(|slice| !slice.is_null());
    for slice in slices.clone() {
        check_local(operation, *slice, needs, limits.peer)?;
    }
    let ranges_there = slices.clone().count();
    if ranges_there > limits.sges as usize {
        return Err(PostError::TooManyRanges { operation, ranges: ranges_there, granted: limits.sges });
    }
    transfer_length(operation, ranges.len_bytes(), limits.max_message_bytes)?;
    let sge = |slice: &LocalSlice<'_>| {
        // No longer than all together, which fit.
        let length = transfer_length(operation, slice.len_bytes(), limits.max_message_bytes)?;
        Ok(ibv_sge { addr: slice.addr(), length, lkey: slice.lkey() })
    };
    Ok(match ranges_there {
        0 | 1 => Sges::One(slices.next().map(sge).transpose()?),
        _ => Sges::Many(slices.map(sge).collect::<Result<_, PostError>>()?),
    })
}

/// Checks bytes that a request is to carry inside itself.
pub(crate) fn inline_side(operation: Operation, bytes: &[u8], granted_bytes: u32) -> Result<Cow<'_, [u8]>, PostError> {
    if bytes.len() > granted_bytes as usize {
        return Err(PostError::InlineTooLong { operation, len_bytes: bytes.len(), granted_bytes });
    }
    Ok(Cow::Borrowed(bytes))
}

/// Checks that the region of `slice` is one of `peer`, registered for what is done with it.
pub(crate) fn check_local(operation: Operation, slice: LocalSlice<'_>, needs: Usage, peer: &Peer) -> Result<(), PostError> {
    if !slice.pd().is_some_and(|pd| Arc::ptr_eq(pd, peer.protection_domain().raw())) {
        return Err(PostError::OtherPeer { operation });
    }
    if !slice.usage().contains(needs) {
        return Err(PostError::LocalUsage { operation, has: slice.usage(), needs });
    }
    Ok(())
}

/// The length of a transfer as a request can tell it; never a shorter one.
fn transfer_length(operation: Operation, len_bytes: usize, max_bytes: u32) -> Result<u32, PostError> {
    let length = u32::try_from(len_bytes).ok().filter(|&length| length <= max_bytes);
    length.ok_or(PostError::TooLong { operation, len_bytes, max_bytes })
}

#[cfg(test)]
mod tests {
    use rpma_mr::ErrorCode;

    use super::*;

    #[test]
    fn transfer_over_the_port_s_maximum_or_32_bits_is_refused_and_never_cut() {
        let too_long = |len_bytes, max_bytes| {
            let error = transfer_length(Operation::Read, len_bytes, max_bytes).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument);
            matches!(error, PostError::TooLong { len_bytes: len, max_bytes: max, .. } if len == len_bytes && max == max_bytes)
        };
        assert!(too_long(0x8000_0001, 0x8000_0000));
        assert!(too_long(1 << 32, u32::MAX));
        assert!(too_long((1 << 32) + 8, u32::MAX));
        assert_eq!(transfer_length(Operation::Read, 0x8000_0000, 0x8000_0000).unwrap(), 0x8000_0000);
        assert_eq!(transfer_length(Operation::Send, 0, 0).unwrap(), 0);
    }

    #[test]
    fn inline_bytes_over_what_was_granted_are_refused_and_never_cut() {
        assert_eq!(*inline_side(Operation::Send, &[7; 16], 16).unwrap(), [7; 16]);
        let error = inline_side(Operation::Send, &[7; 17], 16).unwrap_err();
        assert!(matches!(error, PostError::InlineTooLong { len_bytes: 17, granted_bytes: 16, .. }), "{error:?}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }

    #[test]
    fn null_slices_add_nothing() {
        let null = LocalSlice::null();
        assert_eq!(Ranges::from(&[null, null]).len_bytes(), 0);
        assert_eq!(Source::from(&[] as &[LocalSlice<'_>]).len_bytes(), 0);
        assert_eq!(Source::from(Inline(b"four")).len_bytes(), 4);
    }
}
