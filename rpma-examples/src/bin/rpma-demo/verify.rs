//! Opens a region afresh and checks the records in it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rpma::{AccessError, MapError, PersistentMemory};

use crate::layout::{HEADER_BYTES, HEADER_PAGE_BYTES, HeaderFault, Layout, TooLarge};
use crate::options::Verify;
use crate::output::{self, OutputError};
use crate::record::{self, RecordFault, RunId};

/// Why a region could not be checked, or what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VerifyError {
    #[error("the region {} is not there", .path.display())]
    Missing { path: PathBuf, source: io::Error },
    #[error("the region {} has {have_bytes} bytes, too few for its log of {need_bytes}: it was truncated, or never was one", .path.display())]
    Short { path: PathBuf, have_bytes: u64, need_bytes: usize },
    #[error("the region cannot be opened afresh")]
    Map(#[from] MapError),
    #[error("the region cannot be read")]
    Read(#[from] AccessError),
    #[error("{} holds no log", .path.display())]
    Header { path: PathBuf, source: HeaderFault },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("{} holds the log of run {found}, not of run {expected}", .path.display())]
    OtherRun { path: PathBuf, expected: RunId, found: RunId },
    #[error("{} has room for {room} records, and {acknowledged} are said to be acknowledged", .path.display())]
    TooMany { path: PathBuf, acknowledged: u64, room: u64 },
    #[error("{bad} of {acknowledged} acknowledged records are not intact; the first of them is record {sequence}, at offset {offset_bytes} of {}", .path.display())]
    Damaged { path: PathBuf, bad: u64, acknowledged: u64, sequence: u64, offset_bytes: u64, source: RecordFault },
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// The role: checks a region and says so.
pub(crate) fn run(options: &Verify) -> Result<(), VerifyError> {
    let checked = check(&options.path, options.run, options.acknowledged)?;
    output::line(format_args!("verified: {checked} in {}", options.path.display()))?;
    checked.into_result()
}

/// What the check of a region found.
#[derive(Debug)]
pub(crate) struct Checked {
    path: PathBuf,
    layout: Layout,
    acknowledged: u64,
    bad: u64,
    first_bad: Option<(u64, RecordFault)>,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, bad, .. } = self;
        write!(f, "{}/{acknowledged} acknowledged records intact", acknowledged - bad)
    }
}

impl Checked {
    /// An error unless every record is intact.
    pub(crate) fn into_result(self) -> Result<(), VerifyError> {
        let Self { path, layout, acknowledged, bad, first_bad } = self;
        match first_bad {
            None => Ok(()),
            Some((sequence, source)) => Err(VerifyError::Damaged {
                path,
                bad,
                acknowledged,
                sequence,
                offset_bytes: layout.offset_bytes(sequence),
                source,
            }),
        }
    }
}

/// Maps the region afresh and checks the first `acknowledged` records of the run in it.
pub(crate) fn check(path: &Path, run: RunId, acknowledged: u64) -> Result<Checked, VerifyError> {
    let mut header = [0; HEADER_BYTES];
    open(path, HEADER_PAGE_BYTES)?.read_at(0, &mut header)?;
    let decoded = Layout::decode_header(&header);
    let (layout, found) = decoded.map_err(|source| VerifyError::Header { path: path.to_owned(), source })?;
    if found != run {
        return Err(VerifyError::OtherRun { path: path.to_owned(), expected: run, found });
    }
    if acknowledged > layout.records {
        return Err(VerifyError::TooMany { path: path.to_owned(), acknowledged, room: layout.records });
    }

    let memory = open(path, layout.region_bytes()?)?;
    let mut checked = Checked { path: path.to_owned(), layout, acknowledged, bad: 0, first_bad: None };
    let mut record = vec![0; layout.record_bytes as usize];
    for sequence in 0..acknowledged {
        let offset_bytes = usize::try_from(layout.offset_bytes(sequence)).expect("within the region, which is mapped");
        memory.read_at(offset_bytes, &mut record)?;
        if let Err(fault) = record::check(run, sequence, &record) {
            checked.bad += 1;
            checked.first_bad.get_or_insert((sequence, fault));
        }
    }
    Ok(checked)
}

/// Maps what is there. `PersistentMemory` would make a file that is not there, or is too short, and zeros are no evidence.
fn open(path: &Path, need_bytes: usize) -> Result<PersistentMemory, VerifyError> {
    let metadata = fs::metadata(path).map_err(|source| VerifyError::Missing { path: path.to_owned(), source })?;
    if metadata.is_file() && metadata.len() < need_bytes as u64 {
        return Err(VerifyError::Short { path: path.to_owned(), have_bytes: metadata.len(), need_bytes });
    }
    Ok(PersistentMemory::open(path, need_bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;
    use std::os::unix::fs::FileExt;

    const RUN: RunId = RunId(0xABCD);
    const LAYOUT: Layout = Layout { records: 20, record_bytes: 64, slot_bytes: 64 };

    /// A file as a target leaves it after `written` records.
    fn log(written: u64) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        let mut bytes = vec![0; LAYOUT.region_bytes().unwrap()];
        bytes[..HEADER_BYTES].copy_from_slice(&LAYOUT.encode_header(RUN));
        for sequence in 0..written {
            let at = LAYOUT.offset_bytes(sequence) as usize;
            record::encode(RUN, sequence, &mut bytes[at..at + 64]);
        }
        fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    #[test]
    fn acknowledged_records_that_are_there_are_intact() {
        let (_dir, path) = log(20);
        let checked = check(&path, RUN, 20).unwrap();
        assert_eq!(checked.to_string(), "20/20 acknowledged records intact");
        checked.into_result().unwrap();
    }

    #[test]
    fn records_that_nobody_acknowledged_are_not_looked_at() {
        let (_dir, path) = log(5);
        check(&path, RUN, 5).unwrap().into_result().unwrap();
    }

    #[test]
    fn acknowledged_record_that_is_not_there_is_named() {
        let (_dir, path) = log(5);
        let checked = check(&path, RUN, 7).unwrap();
        assert_eq!(checked.to_string(), "5/7 acknowledged records intact");
        let error = checked.into_result().unwrap_err();
        assert!(matches!(error, VerifyError::Damaged { bad: 2, sequence: 5, source: RecordFault::Blank, .. }), "{error:?}");
    }

    #[test]
    fn changed_byte_is_told_with_record_offset_and_both_checksums() {
        let (_dir, path) = log(20);
        let at = LAYOUT.offset_bytes(17) + 30;
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();

        let error = check(&path, RUN, 20).unwrap().into_result().unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("1 of 20 acknowledged records are not intact"), "{text}");
        assert!(text.contains("record 17, at offset 5184 of"), "{text}");
        let cause = error.source().unwrap().to_string();
        assert!(cause.starts_with("checksum 0x") && cause.contains(" is stored, and 0x"), "{cause}");
    }

    #[test]
    fn another_run_s_log_is_no_evidence() {
        let (_dir, path) = log(20);
        assert!(matches!(check(&path, RunId(1), 20), Err(VerifyError::OtherRun { found: RUN, .. })));
    }

    #[test]
    fn more_records_than_there_is_room_for_are_an_error() {
        let (_dir, path) = log(20);
        assert!(matches!(check(&path, RUN, 21), Err(VerifyError::TooMany { room: 20, .. })));
    }

    #[test]
    fn region_that_is_not_there_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        assert!(matches!(check(&path, RUN, 1), Err(VerifyError::Missing { .. })));
        assert!(!path.exists());
    }

    #[test]
    fn region_that_was_truncated_is_not_made_longer() {
        let (_dir, path) = log(20);
        for len in [100, 5000] {
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
            fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&LAYOUT.encode_header(RUN), 0).unwrap();
            let error = check(&path, RUN, 20).unwrap_err();
            assert!(matches!(error, VerifyError::Short { have_bytes, .. } if have_bytes == len), "{error:?}");
        }
    }

    #[test]
    fn zeros_hold_no_log() {
        let (_dir, path) = log(20);
        fs::write(&path, [0; 8192]).unwrap();
        assert!(matches!(check(&path, RUN, 1), Err(VerifyError::Header { source: HeaderFault::Magic, .. })));
    }
}
