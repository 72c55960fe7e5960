//! What memory is: the kernel's list of this process's mappings (`/proc/self/maps`, proc(5)).
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{fstatfs, major, minor};

use super::page::Page;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    shared: bool,
    offset: u64,
    device: (u32, u32),
    inode: u64,
    path: PathBuf,
}

/// The mappings that the `len_bytes` bytes at `addr` are in, if there is no hole among them.
pub(super) fn covering(addr: u64, len_bytes: u64) -> io::Result<Option<Vec<Mapping>>> {
    Ok(cover(&fs::read_to_string("/proc/self/maps")?, addr, len_bytes))
}

fn cover(maps: &str, addr: u64, len_bytes: u64) -> Option<Vec<Mapping>> {
    let end = addr.checked_add(len_bytes)?;
    let mut reached = addr;
    let mut found = Vec::new();
    for mapping in maps.lines().filter_map(parse) {
        if mapping.end <= reached || reached >= end {
            continue;
        }
        if mapping.start > reached {
            break;
        }
        reached = mapping.end;
        found.push(mapping);
    }
    (reached >= end).then_some(found)
}

/// `start-end perms offset major:minor inode   path`
fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let perms = fields.next()?.as_bytes();
    let offset = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?;
    let path = fields.next().unwrap_or("").trim_start();
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        readable: perms.first() == Some(&b'r'),
        writable: perms.get(1) == Some(&b'w'),
        shared: perms.get(3) == Some(&b's'),
        offset: hex(offset)?,
        device: (number(major)?, number(minor)?),
        inode: inode.parse().ok()?,
        path: PathBuf::from(path),
    })
}

impl Mapping {
    /// Whether pages can go away under the mapping, so that a plain load raises SIGBUS: a file can be truncated.
    pub(super) fn can_fault(&self) -> bool {
        self.inode != 0
    }

    /// How to make its contents durable, if there is a way.
    pub(super) fn durability(&self) -> Option<Durability> {
        if !self.shared || self.inode == 0 {
            return None;
        }
        let file = self.file()?;
        let is = file.metadata().ok()?;
        if is.file_type().is_char_device() {
            // A DAX device has no page cache to write back: the processor's is all there is. Only for x86-64 is that written here.
            return (cfg!(target_arch = "x86_64") && is_dax(&sysfs_of(is.rdev()))).then_some(Durability::CacheLines);
        }
        // These keep nothing: `TMPFS_MAGIC`, `RAMFS_MAGIC`, `HUGETLBFS_MAGIC` (statfs(2)).
        let volatile = [0x0102_1994, 0x8584_58F6, 0x9584_58F6];
        let kind = fstatfs(&file).ok()?.f_type.cast_unsigned() & 0xFFFF_FFFF;
        (!volatile.contains(&kind)).then_some(Durability::File { file, start: self.start, offset: self.offset })
    }

    /// The mapped file, if it can be opened and is the same one still.
    fn file(&self) -> Option<File> {
        // Of what is mapped, and no other. Takes a capability.
        let by_range = File::open(format!("/proc/self/map_files/{:x}-{:x}", self.start, self.end)).ok();
        by_range.or_else(|| File::open(&self.path).ok().filter(|file| self.is_of(file).unwrap_or(false)))
    }

    /// Whether `file` is what is mapped. On some file systems (btrfs, overlays) stat(2) tells other numbers than the list of mappings, so
    /// that one is asked again, about a mapping of `file`.
    fn is_of(&self, file: &File) -> io::Result<bool> {
        let is = file.metadata()?;
        if (is.ino(), major(is.dev()), minor(is.dev())) == (self.inode, self.device.0, self.device.1) {
            return Ok(true);
        }
        // Not of a device, which mapping may do something to.
        Ok(is.is_file() && listed(file)?.is_some_and(|of| (of.device, of.inode) == (self.device, self.inode)))
    }
}

/// How the list of mappings has the file.
fn listed(file: &File) -> io::Result<Option<Mapping>> {
    let page = Page::of(file)?;
    Ok(covering(page.addr(), 1)?.and_then(|mut found| found.pop()))
}

/// What the kernel tells of a character device (sysfs(5)).
fn sysfs_of(device: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/char/{}:{}", major(device), minor(device)))
}

/// Whether the device belongs to the kernel's DAX subsystem.
fn is_dax(sysfs: &Path) -> bool {
    fs::read_link(sysfs.join("subsystem")).is_ok_and(|subsystem| subsystem.ends_with("dax"))
}

/// How memory is made durable.
#[derive(Debug)]
pub(super) enum Durability {
    /// By writing the processor's cache back.
    CacheLines,
    /// By `msync(2)`, as long as the file is there: of a range whose file was truncated it would succeed all the same.
    File {
        /// The file.
        file: File,
        /// Where its mapping begins.
        start: u64,
        /// What part of the file stands there.
        offset: u64,
    },
}

impl Durability {
    /// Whether the file still has what stands in memory up to `end`.
    pub(super) fn still_has(&self, end: u64) -> bool {
        match self {
            Self::CacheLines => true,
            Self::File { file, start, offset } => {
                // The last page of a file reaches beyond its end.
                let page = rustix::param::page_size() as u64;
                file.metadata().is_ok_and(|is| is.len().next_multiple_of(page) >= offset + (end - start))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 08:01 77 /usr/lib/a b.so
2000-4000 rw-p 00000000 00:00 0
6000-7000 rw-s 00001000 103:02 78                         /mnt/pmem/file
";

    #[test]
    fn ranges_are_covered_without_holes_only() {
        let ends = |addr, len| cover(MAPS, addr, len).map(|found| found.len());
        assert_eq!(ends(0x1000, 0x3000), Some(2));
        assert_eq!(ends(0x2FFF, 1), Some(1));
        assert_eq!(ends(0x3000, 0x1001), None);
        assert_eq!(ends(0x5FFF, 2), None);
        assert_eq!(ends(0x6000, 0x1000), Some(1));
        assert_eq!(ends(0x8000, 1), None);
        assert_eq!(ends(u64::MAX, 2), None);
    }

    #[test]
    fn fields_are_those_of_proc_5() {
        let mapping = cover(MAPS, 0x6000, 1).unwrap().remove(0);
        assert!(mapping.shared && mapping.readable && mapping.writable && mapping.can_fault());
        assert_eq!((mapping.offset, mapping.device, mapping.inode), (0x1000, (0x103, 2), 78));
        assert_eq!(mapping.path, Path::new("/mnt/pmem/file"));
        assert_eq!(cover(MAPS, 0x1000, 1).unwrap()[0].path, Path::new("/usr/lib/a b.so"));
        assert!(!cover(MAPS, 0x2000, 1).unwrap()[0].can_fault());
    }

    #[test]
    fn own_stack_is_mapped_and_not_durable() {
        let here = 0_u8;
        let addr = (&raw const here).addr() as u64;
        let found = covering(addr, 1).unwrap().unwrap();
        assert!(found[0].writable && found[0].durability().is_none());
        assert!(covering(16, 1).unwrap().is_none());
    }

    #[test]
    fn mapping_is_of_the_file_that_it_is_of_and_of_no_other() {
        let [one, other] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let mapping = listed(&one).unwrap().unwrap();
        assert!(mapping.is_of(&one).unwrap() && !mapping.is_of(&other).unwrap());
        // What decides where stat(2) tells another device.
        let again = listed(&one).unwrap().unwrap();
        assert_eq!((again.device, again.inode), (mapping.device, mapping.inode));
        assert_ne!(listed(&other).unwrap().unwrap().inode, mapping.inode);
    }

    #[test]
    fn dax_devices_are_known_by_their_subsystem() {
        let sysfs = tempfile::tempdir().unwrap();
        assert!(!is_dax(sysfs.path()));
        symlink("../../../../../../../bus/dax", sysfs.path().join("subsystem")).unwrap();
        assert!(is_dax(sysfs.path()));
        let (null, zero) = (fs::metadata("/dev/null").unwrap(), fs::metadata("/dev/zero").unwrap());
        assert_ne!(sysfs_of(null.rdev()), sysfs_of(zero.rdev()));
        assert!(!is_dax(&sysfs_of(null.rdev())));
    }
}
