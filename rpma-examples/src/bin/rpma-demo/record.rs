//! One record of the log: its bytes, and what can be wrong with them.
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0 | 4 | `RPMR` |
//! | 4 | 4 | length of the whole record |
//! | 8 | 8 | number of the run |
//! | 16 | 8 | sequence number, from 0 |
//! | 24 | length - 28 | content, which follows from run and sequence number |
//! | length - 4 | 4 | CRC-32 of everything before it |
//!
//! Numbers are little-endian. The run's number keeps what an earlier run left in the same memory from passing for a record of this one.

use std::fmt;
use std::str::FromStr;

/// The shortest record: the fields around the content, and 4 bytes of it.
pub(crate) const MIN_BYTES: u32 = 32;

const MAGIC: [u8; 4] = *b"RPMR";
const CONTENT_AT: usize = 24;
const CRC_BYTES: usize = 4;

/// The number of a run: written in hexadecimal, 16 digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunId(pub(crate) u64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Something is not the number of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the number of a run is 16 hexadecimal digits, as the target prints it")]
pub(crate) struct NoRunId;

impl FromStr for RunId {
    type Err = NoRunId;

    fn from_str(text: &str) -> Result<Self, NoRunId> {
        // `from_str_radix` would take a sign too.
        if text.len() != 16 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(NoRunId);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| NoRunId)
    }
}

/// Why bytes are not the record that was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordFault {
    #[error("only zeros are there: it was never written, or is lost")]
    Blank,
    #[error("checksum {found:#010x} is stored, and {expected:#010x} is that of the bytes found: it is torn or damaged")]
    Checksum { expected: u32, found: u32 },
    #[error("no record is there: the bytes have a valid checksum and do not begin as a record does")]
    NoRecord,
    #[error("the record is of another run, {found}")]
    OtherRun { found: RunId },
    #[error("the record of sequence number {found} is in its place")]
    OtherSequence { found: u64 },
    #[error("it says that it is {found} bytes long")]
    OtherLength { found: u32 },
    #[error("its byte {at} is {found:#04x}, and {expected:#04x} was written, though the checksum is valid")]
    Content { at: usize, expected: u8, found: u8 },
}

/// Fills `record`, at least [`MIN_BYTES`] long, with the record of this run and sequence number.
pub(crate) fn encode(run: RunId, sequence: u64, record: &mut [u8]) {
    let crc_at = record.len() - CRC_BYTES;
    let len_bytes = u32::try_from(record.len()).expect("records are at most 16 MiB: `options.rs`");
    record[0..4].copy_from_slice(&MAGIC);
    record[4..8].copy_from_slice(&len_bytes.to_le_bytes());
    record[8..16].copy_from_slice(&run.0.to_le_bytes());
    record[16..24].copy_from_slice(&sequence.to_le_bytes());
    let mut words = Words(run.0 ^ sequence.wrapping_mul(GOLDEN));
    for piece in record[CONTENT_AT..crc_at].chunks_mut(8) {
        piece.copy_from_slice(&words.next().to_le_bytes()[..piece.len()]);
    }
    let crc = crc32fast::hash(&record[..crc_at]);
    record[crc_at..].copy_from_slice(&crc.to_le_bytes());
}

/// Checks a copy of a record, made before.
pub(crate) fn check(run: RunId, sequence: u64, record: &[u8]) -> Result<(), RecordFault> {
    let mut written = vec![0; record.len()];
    encode(run, sequence, &mut written);
    let Some(at) = record.iter().zip(&written).position(|(found, expected)| found != expected) else { return Ok(()) };
    if record.iter().all(|b| *b == 0) {
        return Err(RecordFault::Blank);
    }
    let crc_at = record.len() - CRC_BYTES;
    let (expected, found) = (crc32fast::hash(&record[..crc_at]), number32(record, crc_at));
    if expected != found {
        return Err(RecordFault::Checksum { expected, found });
    }
    if record[..4] != MAGIC {
        return Err(RecordFault::NoRecord);
    }
    let (found_len, found_run, found_sequence) = (number32(record, 4), RunId(number64(record, 8)), number64(record, 16));
    Err(if found_run != run {
        RecordFault::OtherRun { found: found_run }
    } else if found_sequence != sequence {
        RecordFault::OtherSequence { found: found_sequence }
    } else if found_len != number32(&written, 4) {
        RecordFault::OtherLength { found: found_len }
    } else {
        RecordFault::Content { at, expected: written[at], found: record[at] }
    })
}

/// The little-endian number at `at`.
pub(crate) fn number32(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

/// The little-endian number at `at`.
pub(crate) fn number64(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// 2^64 divided by the golden ratio: the step of SplitMix64 (Steele, Lea, Flood 2014).
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64: content that no other record has, and that nobody has to store.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId(0x0123_4567_89AB_CDEF);

    fn record(run: RunId, sequence: u64, len_bytes: usize) -> Vec<u8> {
        let mut record = vec![0; len_bytes];
        encode(run, sequence, &mut record);
        record
    }

    /// Gives changed bytes a valid checksum again.
    fn seal(record: &mut [u8]) {
        let crc_at = record.len() - CRC_BYTES;
        let crc = crc32fast::hash(&record[..crc_at]);
        record[crc_at..].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn record_checks_as_itself_at_every_length_and_as_nothing_else() {
        for len in (MIN_BYTES as usize..80).chain([256, 4096]) {
            let bytes = record(RUN, 7, len);
            assert_eq!(check(RUN, 7, &bytes), Ok(()), "{len}");
            assert_eq!(check(RUN, 8, &bytes), Err(RecordFault::OtherSequence { found: 7 }));
            assert_eq!(check(RunId(1), 7, &bytes), Err(RecordFault::OtherRun { found: RUN }));
        }
    }

    #[test]
    fn every_single_changed_byte_is_found() {
        let good = record(RUN, 7, 64);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(matches!(check(RUN, 7, &bad), Err(RecordFault::Checksum { .. })), "{at}");
        }
    }

    #[test]
    fn zeros_are_told_from_damage() {
        assert_eq!(check(RUN, 0, &[0; 64]), Err(RecordFault::Blank));
    }

    #[test]
    fn half_a_record_over_an_older_one_is_found() {
        let mut torn = record(RunId(99), 3, 256);
        torn[..128].copy_from_slice(&record(RUN, 3, 256)[..128]);
        assert!(matches!(check(RUN, 3, &torn), Err(RecordFault::Checksum { .. })));
    }

    #[test]
    fn valid_checksum_does_not_excuse_other_bytes() {
        let changed = |at: usize| {
            let mut bad = record(RUN, 7, 64);
            bad[at] ^= 1;
            seal(&mut bad);
            check(RUN, 7, &bad).unwrap_err()
        };
        assert_eq!(changed(0), RecordFault::NoRecord);
        assert_eq!(changed(4), RecordFault::OtherLength { found: 65 });
        assert!(matches!(changed(40), RecordFault::Content { at: 40, .. }));
    }

    #[test]
    fn contents_of_records_differ() {
        let content = |run, sequence| record(run, sequence, 256)[CONTENT_AT..252].to_vec();
        assert_ne!(content(RUN, 0), content(RUN, 1));
        assert_ne!(content(RUN, 0), content(RunId(0), 0));
    }

    #[test]
    fn run_number_reads_back_as_it_is_printed_and_nothing_else_does() {
        assert_eq!(RUN.to_string().parse(), Ok(RUN));
        assert_eq!(RunId(0).to_string().parse(), Ok(RunId(0)));
        for text in ["", "1", "+123456789abcdef", "0123456789abcdefg", "0123456789abcdeg"] {
            assert_eq!(text.parse::<RunId>(), Err(NoRunId), "{text}");
        }
    }
}
