//! How the region is laid out: a header page, and behind it one slot after the other.
//!
//! The header: `RPMADEMO`, a version, the lengths of a record and of a slot (4 bytes each), the number of records, the number of the
//! run (8 bytes each), and the CRC-32 of all that. Numbers are little-endian. The rest of the page is left alone.

use crate::record::{MIN_BYTES, RunId, number32, number64};

/// What the header takes: a page, so that the slots begin on one.
pub(crate) const HEADER_PAGE_BYTES: usize = 4096;
/// What of the page is used.
pub(crate) const HEADER_BYTES: usize = 40;

pub(crate) const MAGIC: [u8; 8] = *b"RPMADEMO";
const VERSION: u32 = 1;
const CRC_AT: usize = HEADER_BYTES - 4;

/// How many records of which length a region has room for, and where they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) records: u64,
    pub(crate) record_bytes: u32,
    /// From the beginning of one record to that of the next, not less than a record.
    pub(crate) slot_bytes: u32,
}

/// The records do not fit an address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} records of {} bytes are more than any memory holds", .0.records, .0.record_bytes)]
pub(crate) struct TooLarge(pub(crate) Layout);

/// Why the first page of a region is no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderFault {
    #[error("the page does not begin as a log of rpma-demo does")]
    Magic,
    #[error("the log is of version {found}, and this program knows version 1")]
    Version { found: u32 },
    #[error("the log has records of {record_bytes} bytes in slots of {slot_bytes}, which cannot be")]
    Lengths { record_bytes: u32, slot_bytes: u32 },
    #[error("the header's checksum is wrong: {found:#010x} is stored, {expected:#010x} is that of the bytes found")]
    Checksum { expected: u32, found: u32 },
}

/// What records on pages of their own begin on a multiple of: the size of a page, or a part of one.
const PAGE_BYTES: u32 = 4096;

impl Layout {
    /// One record directly behind the other, as a log should be.
    pub(crate) fn packed(records: u64, record_bytes: u32) -> Self {
        Self { records, record_bytes, slot_bytes: record_bytes }
    }

    /// The same records, each on a page of its own.
    pub(crate) fn on_own_pages(self) -> Self {
        let slot_bytes = self.record_bytes.next_multiple_of(PAGE_BYTES);
        Self { slot_bytes, ..self }
    }

    /// The length of the region in bytes.
    pub(crate) fn region_bytes(self) -> Result<usize, TooLarge> {
        let bytes = self.records.checked_mul(self.slot_bytes.into()).and_then(|log| log.checked_add(HEADER_PAGE_BYTES as u64));
        bytes.and_then(|bytes| isize::try_from(bytes).ok()).map(isize::unsigned_abs).ok_or(TooLarge(self))
    }

    /// Where the record of this sequence number begins, in bytes from the region's start. Fits, because the whole region does.
    pub(crate) fn offset_bytes(self, sequence: u64) -> u64 {
        HEADER_PAGE_BYTES as u64 + sequence * u64::from(self.slot_bytes)
    }

    pub(crate) fn encode_header(self, run: RunId) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&self.record_bytes.to_le_bytes());
        header[16..20].copy_from_slice(&self.slot_bytes.to_le_bytes());
        header[20..28].copy_from_slice(&self.records.to_le_bytes());
        header[28..36].copy_from_slice(&run.0.to_le_bytes());
        let crc = crc32fast::hash(&header[..CRC_AT]);
        header[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    pub(crate) fn decode_header(header: &[u8; HEADER_BYTES]) -> Result<(Self, RunId), HeaderFault> {
        if header[..8] != MAGIC {
            return Err(HeaderFault::Magic);
        }
        let (expected, found) = (crc32fast::hash(&header[..CRC_AT]), number32(header, CRC_AT));
        if expected != found {
            return Err(HeaderFault::Checksum { expected, found });
        }
        let found = number32(header, 8);
        if found != VERSION {
            return Err(HeaderFault::Version { found });
        }
        let (record_bytes, slot_bytes) = (number32(header, 12), number32(header, 16));
        if record_bytes < MIN_BYTES || slot_bytes < record_bytes {
            return Err(HeaderFault::Lengths { record_bytes, slot_bytes });
        }
        Ok((Self { records: number64(header, 20), record_bytes, slot_bytes }, RunId(number64(header, 28))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { records: 10_000, record_bytes: 256, slot_bytes: 256 };

    #[test]
    fn slots_lie_behind_the_header_and_fill_the_region() {
        assert_eq!(LAYOUT.region_bytes(), Ok(4096 + 2_560_000));
        assert_eq!(LAYOUT.offset_bytes(0), 4096);
        assert_eq!(LAYOUT.offset_bytes(10_000) as usize, LAYOUT.region_bytes().unwrap());
    }

    #[test]
    fn records_on_their_own_pages_begin_on_page_boundaries() {
        for (record_bytes, slot_bytes) in [(32, 4096), (4096, 4096), (4097, 8192)] {
            let layout = Layout::packed(10, record_bytes).on_own_pages();
            assert_eq!((layout.slot_bytes, layout.record_bytes), (slot_bytes, record_bytes));
            assert!(layout.offset_bytes(7).is_multiple_of(4096));
            assert_eq!(layout.region_bytes(), Ok(4096 + 10 * slot_bytes as usize));
        }
    }

    #[test]
    fn header_with_impossible_lengths_is_an_error() {
        for (record_bytes, slot_bytes) in [(31, 4096), (0, 0), (64, 63)] {
            let header = Layout { records: 1, record_bytes, slot_bytes }.encode_header(RunId(5));
            assert_eq!(Layout::decode_header(&header), Err(HeaderFault::Lengths { record_bytes, slot_bytes }));
        }
    }

    #[test]
    fn log_that_no_memory_holds_is_an_error() {
        for layout in [Layout::packed(u64::MAX, 32), Layout::packed(1 << 58, 32), Layout::packed(1 << 51, 32).on_own_pages()] {
            assert_eq!(layout.region_bytes(), Err(TooLarge(layout)));
        }
    }

    #[test]
    fn header_decodes_to_what_was_encoded_and_every_changed_byte_is_found() {
        let good = LAYOUT.encode_header(RunId(5));
        assert_eq!(Layout::decode_header(&good), Ok((LAYOUT, RunId(5))));
        let paged = LAYOUT.on_own_pages();
        assert_eq!(Layout::decode_header(&paged.encode_header(RunId(5))), Ok((paged, RunId(5))));
        for at in 0..good.len() {
            let mut bad = good;
            bad[at] ^= 0x10;
            assert!(Layout::decode_header(&bad).is_err(), "{at}");
        }
        assert_eq!(Layout::decode_header(&[0; HEADER_BYTES]), Err(HeaderFault::Magic));
    }
}
