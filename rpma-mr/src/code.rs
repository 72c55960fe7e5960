//! The error codes of the C library, which every error of this workspace maps to.

use std::fmt;

/// An error code of the C library (`RPMA_E_*`).
///
/// Rust errors say more; the code is what they have in common, and what the C interface returns.
/// The set is closed: the C library is discontinued.
///
/// ```
/// use rpma_mr::{ErrorCode, RemoteMr};
///
/// let error = RemoteMr::from_descriptor(b"too short").unwrap_err();
/// assert_eq!(error.code(), ErrorCode::InvalidArgument); // every error has one
/// assert_eq!(ErrorCode::from_raw(error.code().as_raw()), Some(ErrorCode::InvalidArgument)); // C's number
/// ```
#[doc(alias = "rpma_err_2str")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum ErrorCode {
    /// Something failed without saying why (`RPMA_E_UNKNOWN`).
    Unknown = -100_000,
    /// The device, the memory or the peer does not support what was asked (`RPMA_E_NOSUPP`).
    NotSupported = -100_001,
    /// The RDMA provider, the kernel or the network failed (`RPMA_E_PROVIDER`).
    Provider = -100_002,
    /// Out of memory (`RPMA_E_NOMEM`).
    NoMemory = -100_003,
    /// The caller passed something invalid (`RPMA_E_INVAL`).
    InvalidArgument = -100_004,
    /// No completion is available now (`RPMA_E_NO_COMPLETION`).
    NoCompletion = -100_005,
    /// No event is available now (`RPMA_E_NO_EVENT`).
    NoEvent = -100_006,
    /// A temporary condition; the same call may succeed later (`RPMA_E_AGAIN`).
    Again = -100_007,
    /// The completion channel is shared, so one queue cannot wait on it (`RPMA_E_SHARED_CHANNEL`).
    SharedChannel = -100_008,
    /// The completion channel is not shared, so the connection cannot wait on it
    /// (`RPMA_E_NOT_SHARED_CHNL`).
    NotSharedChannel = -100_009,
}

impl ErrorCode {
    /// The number of `RPMA_E_*`, always negative.
    #[must_use]
    pub const fn as_raw(self) -> i32 {
        self as i32
    }

    /// The code with this number of `RPMA_E_*`. `None` for 0, which is success, and for numbers
    /// that the C library does not define.
    #[must_use]
    pub const fn from_raw(raw: i32) -> Option<Self> {
        Some(match raw {
            -100_000 => Self::Unknown,
            -100_001 => Self::NotSupported,
            -100_002 => Self::Provider,
            -100_003 => Self::NoMemory,
            -100_004 => Self::InvalidArgument,
            -100_005 => Self::NoCompletion,
            -100_006 => Self::NoEvent,
            -100_007 => Self::Again,
            -100_008 => Self::SharedChannel,
            -100_009 => Self::NotSharedChannel,
            _ => return None,
        })
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unknown => "the operation failed for an unknown reason",
            Self::NotSupported => "the operation is not supported here",
            Self::Provider => "the RDMA provider reported an error",
            Self::NoMemory => "out of memory",
            Self::InvalidArgument => "an argument is invalid",
            Self::NoCompletion => "no completion is available",
            Self::NoEvent => "no event is available",
            Self::Again => "the operation cannot be done now, try again",
            Self::SharedChannel => "the completion channel is shared: wait on the connection",
            Self::NotSharedChannel => "the completion channel is not shared: wait on its queue",
        })
    }
}

impl std::error::Error for ErrorCode {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const ALL: [(ErrorCode, i32); 10] = [
        (ErrorCode::Unknown, -100000),
        (ErrorCode::NotSupported, -100001),
        (ErrorCode::Provider, -100002),
        (ErrorCode::NoMemory, -100003),
        (ErrorCode::InvalidArgument, -100004),
        (ErrorCode::NoCompletion, -100005),
        (ErrorCode::NoEvent, -100006),
        (ErrorCode::Again, -100007),
        (ErrorCode::SharedChannel, -100008),
        (ErrorCode::NotSharedChannel, -100009),
    ];

    #[test]
    fn code_numbers_are_those_of_the_c_library_both_ways() {
        for (code, raw) in ALL {
            assert_eq!(code.as_raw(), raw, "{code:?}");
            assert_eq!(ErrorCode::from_raw(raw), Some(code), "{raw}");
        }
    }

    #[test]
    fn numbers_of_no_code_are_none() {
        for raw in [0, 1, -1, -22, -99_999, -100_010, 100_000, i32::MIN, i32::MAX] {
            assert_eq!(ErrorCode::from_raw(raw), None, "{raw}");
        }
    }

    #[test]
    fn each_code_has_a_sentence_of_its_own() {
        let sentences: HashSet<_> = ALL.iter().map(|(code, _)| code.to_string()).collect();
        assert_eq!(sentences.len(), ALL.len());
    }
}
