//! What the two ends tell each other in the private data of connection request and acceptance.
//!
//! The writer's request carries `RPMADEMO` and a version. The target's answer:
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0 | 8 | `RPMADEMO` |
//! | 8 | 1 | version |
//! | 9 | 1 | what the region is made of ([`Made`]) |
//! | 10 | 1 | 1 if it is registered with on-demand paging, else 0 |
//! | 11 | 2 | the target's peer configuration |
//! | 13 | 21 | the region's descriptor |
//! | 34 | 4 | record length |
//! | 38 | 4 | slot length |
//! | 42 | 8 | number of records |
//! | 50 | 8 | number of the run |
//! | 58 | 1 | length of the path |
//! | 59 | up to 137 | path of the region on the target's machine; none if it is longer |

use std::fmt;
use std::path::Path;

use rpma::{Backing, DescriptorError, MAX_ACCEPT_BYTES, MrDescriptor, PeerCfg, PeerCfgError, RemoteMr, Usage};

use crate::layout::{Layout, MAGIC, TooLarge};
use crate::record::{MIN_BYTES, RunId, number32, number64};

const VERSION: u8 = 1;
const PATH_AT: usize = 59;

/// The private data of the writer's request.
pub(crate) const REQUEST: [u8; 9] = {
    let mut request = [VERSION; 9];
    request.split_at_mut(8).0.copy_from_slice(&MAGIC);
    request
};

/// Whether a request's private data, which zeros may follow, is a writer's.
pub(crate) fn is_request(private_data: &[u8]) -> bool {
    private_data.starts_with(&REQUEST)
}

/// What a region is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    DaxDevice,
    DaxFile,
    TmpfsFile,
    File,
}

impl Made {
    const ALL: [Self; 4] = [Self::DaxDevice, Self::DaxFile, Self::TmpfsFile, Self::File];

    pub(crate) fn of(backing: Backing, is_tmpfs: bool) -> Self {
        match backing {
            Backing::DaxDevice => Self::DaxDevice,
            Backing::DaxFile => Self::DaxFile,
            _ if is_tmpfs => Self::TmpfsFile,
            _ => Self::File,
        }
    }

    /// Whether the pages are persistent memory.
    pub(crate) fn is_persistent(self) -> bool {
        matches!(self, Self::DaxDevice | Self::DaxFile)
    }

    /// Why such a region takes no persistent flush.
    pub(crate) fn why_not_persistent(self) -> &'static str {
        match self {
            Self::DaxDevice | Self::DaxFile => "the target's device does not take its memory for persistent",
            Self::TmpfsFile => "tmpfs is ordinary memory, which a loss of power empties",
            Self::File => "a file's pages are a cache, and the target's device does not bring them to its disk",
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::DaxDevice => 1,
            Self::DaxFile => 2,
            Self::TmpfsFile => 3,
            Self::File => 4,
        }
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DaxDevice => "a DAX device",
            Self::DaxFile => "a file on a DAX file system",
            Self::TmpfsFile => "a file on tmpfs",
            Self::File => "an ordinary file",
        })
    }
}

/// What the target tells of its region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) made: Made,
    pub(crate) is_on_demand: bool,
    pub(crate) peer_cfg: PeerCfg,
    pub(crate) region: MrDescriptor,
    pub(crate) layout: Layout,
    pub(crate) run: RunId,
    /// As it can be shown. Empty if it is too long for the message.
    pub(crate) path: String,
}

/// Why the answer to our request is none of a target's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloError {
    #[error("the other side is no target of rpma-demo: its private data ({have_bytes} bytes) does not begin as a target's does")]
    Foreign { have_bytes: usize },
    #[error("the target speaks version {found} of this program's protocol, and this writer version 1")]
    Version { found: u8 },
    #[error("the target says that its region is made of something unknown ({found})")]
    Made { found: u8 },
    #[error("the target's region descriptor is malformed")]
    Descriptor(#[from] DescriptorError),
    #[error("the target's peer configuration is malformed")]
    PeerCfg(#[from] PeerCfgError),
    #[error(
        "the target tells of {} records of {} bytes in slots of {}, which cannot be: a record has at least {MIN_BYTES}",
        .0.records, .0.record_bytes, .0.slot_bytes
    )]
    Room(Layout),
    #[error("the target offers more than there can be")]
    TooLarge(#[from] TooLarge),
    #[error("the target's region has {region_bytes} bytes, and its log would need {log_bytes}")]
    Short { region_bytes: u64, log_bytes: u64 },
}

impl Hello {
    /// The private data of the acceptance.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let path = if PATH_AT + self.path.len() <= MAX_ACCEPT_BYTES { self.path.as_bytes() } else { &[] };
        let mut peer_cfg = [0; PeerCfg::MAX_SIZE_BYTES];
        let cfg = self.peer_cfg.to_bytes();
        peer_cfg[..cfg.len()].copy_from_slice(&cfg);

        let mut bytes = Vec::with_capacity(MAX_ACCEPT_BYTES);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.made.code(), self.is_on_demand.into()]);
        bytes.extend(peer_cfg);
        bytes.extend(self.region.to_bytes());
        bytes.extend(self.layout.record_bytes.to_le_bytes());
        bytes.extend(self.layout.slot_bytes.to_le_bytes());
        bytes.extend(self.layout.records.to_le_bytes());
        bytes.extend(self.run.0.to_le_bytes());
        bytes.push(u8::try_from(path.len()).expect("at most 137: checked above"));
        bytes.extend(path);
        bytes
    }

    /// Decodes what a target sent; zeros may follow it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        if bytes.len() < PATH_AT || bytes[..8] != MAGIC {
            return Err(HelloError::Foreign { have_bytes: bytes.len() });
        }
        if bytes[8] != VERSION {
            return Err(HelloError::Version { found: bytes[8] });
        }
        let made = Made::ALL.into_iter().find(|made| made.code() == bytes[9]).ok_or(HelloError::Made { found: bytes[9] })?;
        let region = MrDescriptor::from_bytes(&bytes[13..34])?;
        let (record_bytes, slot_bytes) = (number32(bytes, 34), number32(bytes, 38));
        let layout = Layout { records: number64(bytes, 42), record_bytes, slot_bytes };
        if record_bytes < MIN_BYTES || slot_bytes < record_bytes || layout.records == 0 {
            return Err(HelloError::Room(layout));
        }
        let (region_bytes, log_bytes) = (region.len_bytes(), layout.region_bytes()? as u64);
        if region_bytes < log_bytes {
            return Err(HelloError::Short { region_bytes, log_bytes });
        }
        let path = bytes[PATH_AT..].get(..usize::from(bytes[PATH_AT - 1])).unwrap_or_default();
        Ok(Self {
            made,
            is_on_demand: bytes[10] == 1,
            peer_cfg: PeerCfg::from_bytes(&bytes[11..13])?,
            region,
            layout,
            run: RunId(number64(bytes, 50)),
            path: String::from_utf8_lossy(path).into_owned(),
        })
    }

    /// Why this region takes no persistent flush; `None` if it does.
    pub(crate) fn why_not_persistent(&self) -> Option<&'static str> {
        let persistent = RemoteMr::from(self.region).flush_types().contains(Usage::FLUSH_TYPE_PERSISTENT);
        if !persistent {
            Some(self.made.why_not_persistent())
        } else if !self.peer_cfg.direct_write_to_pmem() {
            Some("the target does not say that its device writes directly to persistent memory")
        } else {
            None
        }
    }
}

impl fmt::Display for Hello {
    /// The region, as people want to know it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_on_demand { "with" } else { "without" };
        if self.path.is_empty() {
            write!(f, "{}, registered {how} on-demand paging", self.made)
        } else {
            write!(f, "{} ({}), registered {how} on-demand paging", self.path, self.made)
        }
    }
}

/// The path as it can be sent and shown.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpma::NativeOps;

    fn hello() -> Hello {
        let usage = Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT;
        Hello {
            made: Made::DaxDevice,
            is_on_demand: false,
            peer_cfg: PeerCfg::new()
                .with_direct_write_to_pmem(true)
                .with_native_ops(Some(NativeOps { flush: true, atomic_write: false })),
            region: MrDescriptor::new(0x7000_0000, 4096 + 32 * 10, 7, usage).unwrap(),
            layout: Layout { records: 10, record_bytes: 32, slot_bytes: 32 },
            run: RunId(0xFEDC_BA98_7654_3210),
            path: "/dev/dax0.0".to_owned(),
        }
    }

    #[test]
    fn hello_decodes_from_a_private_data_field_that_zeros_fill_up() {
        for made in Made::ALL {
            let sent = Hello { made, is_on_demand: made == Made::DaxFile, ..hello() };
            let mut field = sent.encode();
            field.resize(MAX_ACCEPT_BYTES, 0);
            assert_eq!(Hello::decode(&field), Ok(sent));
        }
    }

    #[test]
    fn longest_path_fits_and_a_longer_one_is_left_out() {
        for (len, expected) in [(137, 137), (138, 0), (5000, 0)] {
            let bytes = Hello { path: "p".repeat(len), ..hello() }.encode();
            assert!(bytes.len() <= MAX_ACCEPT_BYTES, "{len}");
            assert_eq!(Hello::decode(&bytes).unwrap().path.len(), expected, "{len}");
        }
    }

    #[test]
    fn what_is_no_hello_is_an_error_and_never_a_panic() {
        let good = hello().encode();
        for len in 0..PATH_AT {
            assert_eq!(Hello::decode(&good[..len]), Err(HelloError::Foreign { have_bytes: len }));
        }
        let with = |at: usize, value: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + value.len()].copy_from_slice(value);
            Hello::decode(&bytes)
        };
        assert!(matches!(with(0, b"X"), Err(HelloError::Foreign { .. })));
        assert_eq!(with(8, &[2]), Err(HelloError::Version { found: 2 }));
        assert_eq!(with(9, &[0]), Err(HelloError::Made { found: 0 }));
        assert!(matches!(with(33, &[0]), Err(HelloError::Descriptor(_))));
        assert!(matches!(with(34, &[31]), Err(HelloError::Room(Layout { record_bytes: 31, .. }))));
        assert!(matches!(with(38, &[31]), Err(HelloError::Room(Layout { slot_bytes: 31, .. }))));
        assert!(matches!(with(38, &[33]), Err(HelloError::Short { .. })));
        assert!(matches!(with(42, &[0]), Err(HelloError::Room(Layout { records: 0, .. }))));
        assert!(matches!(with(42, &[11]), Err(HelloError::Short { .. })));
        assert!(matches!(with(42, &[0xFF; 8]), Err(HelloError::TooLarge(_))));
        // A path that claims to be longer than the message is no path.
        assert_eq!(with(58, &[200]).unwrap().path, "");
    }

    #[test]
    fn persistent_flush_takes_the_usage_and_the_target_s_word() {
        assert_eq!(hello().why_not_persistent(), None);
        assert!(Hello { peer_cfg: PeerCfg::new(), ..hello() }.why_not_persistent().is_some());
        let usage = Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY;
        let region = MrDescriptor::new(0x7000_0000, 4096 + 32 * 10, 7, usage).unwrap();
        let reason = Hello { made: Made::TmpfsFile, region, ..hello() }.why_not_persistent();
        assert!(reason.is_some_and(|reason| reason.contains("tmpfs")));
    }

    #[test]
    fn request_is_known_with_zeros_behind_it_and_nothing_else_is() {
        let mut field = REQUEST.to_vec();
        field.resize(56, 0);
        assert!(is_request(&field));
        assert!(!is_request(&[0; 56]));
        assert!(!is_request(&REQUEST[..8]));
    }
}
