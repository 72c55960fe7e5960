//! How much private data each message of the connection manager carries.

use rpma_mr::ErrorCode;

/// Most bytes of private data in a connection request over RoCE and InfiniBand: `rdma_connect(3)`.
pub const MAX_CONNECT_BYTES: usize = 56;
/// Most bytes of private data when accepting: `rdma_accept(3)`.
pub const MAX_ACCEPT_BYTES: usize = 196;
/// Most bytes of private data when rejecting: `rdma_reject(3)`.
pub const MAX_REJECT_BYTES: usize = 148;

/// The private data does not fit the message.
///
/// ```
/// use rpma::{ConnectError, MAX_CONNECT_BYTES, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// let request = ConnReq::new(&peer, addr, &ConnCfg::new())?;
/// let error = request.connect(&[0; MAX_CONNECT_BYTES + 1]).expect_err("it does not fit");
/// assert!(matches!(error, ConnectError::PrivateData(e) if e.max_bytes == MAX_CONNECT_BYTES));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len_bytes} bytes of private data do not fit a connection manager's {message} message: at most {max_bytes} do")]
#[expect(missing_docs, reason = "the message explains its fields")]
pub struct PrivateDataTooLong {
    pub message: &'static str,
    pub len_bytes: usize,
    pub max_bytes: usize,
}

impl PrivateDataTooLong {
    /// The code that librpma gives for this.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        ErrorCode::InvalidArgument
    }
}

/// Checked before the call: an accept that the connection manager refuses has already rejected the client (measured).
pub(crate) fn check(message: &'static str, data: &[u8], max_bytes: usize) -> Result<(), PrivateDataTooLong> {
    if data.len() > max_bytes { Err(PrivateDataTooLong { message, len_bytes: data.len(), max_bytes }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_exactly_the_limit_fits_and_one_byte_more_does_not() {
        assert_eq!(check("connect", &[0; 56], MAX_CONNECT_BYTES), Ok(()));
        let error = check("connect", &[0; 57], MAX_CONNECT_BYTES).unwrap_err();
        assert_eq!((error.len_bytes, error.max_bytes), (57, 56));
    }
}
