//! What can be wrong with bytes that arrive, and with a buffer that is to be filled.

/// Why what arrived is no frame. The stream cannot be read any further: there is no way to find the next header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum FrameError {
    /// Something else than this protocol is at the other end.
    #[error("the stream begins with {found:02x?}: the other end is no rpma-soft")]
    Magic { found: [u8; 8] },
    /// The other end is of another version.
    #[error("the other end speaks version {found} of the protocol, this end version {ours}")]
    Version { found: u16, ours: u16 },
    /// No frame has this kind.
    #[error("unknown frame kind {kind:#04x}")]
    Kind { kind: u8 },
    /// A flag that this kind does not have.
    #[error("unknown flags {flags:#04x} in a frame of kind {kind:#04x}")]
    Flags { kind: u8, flags: u8 },
    /// A reserved field is in use.
    #[error("a reserved field of a frame of kind {kind:#04x} is not 0")]
    Reserved { kind: u8 },
    /// A length beyond [`MAX_MESSAGE_BYTES`](super::MAX_MESSAGE_BYTES), or one where there can be none.
    #[error("{len_bytes} bytes announced by a frame of kind {kind:#04x}, {max_bytes} allowed")]
    Length { kind: u8, len_bytes: u32, max_bytes: u32 },
    /// A field's value has no meaning.
    #[error("{field} is {value} in a frame of kind {kind:#04x}")]
    Value { kind: u8, field: &'static str, value: u64 },
}

/// Why a frame could not be encoded. A caller bug: nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum EncodeError {
    /// The buffer is shorter than the header.
    #[error("a header of {need_bytes} bytes does not fit in {have_bytes}")]
    Buffer { need_bytes: usize, have_bytes: usize },
    /// The field's value is one that a decoder refuses.
    #[error("{field} cannot be {value}")]
    Value { field: &'static str, value: u64 },
}
