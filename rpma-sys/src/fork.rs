//! Knowing that this process is a fork of the one that made an object.
//!
//! A child's deregistration would remove its parent's (measured on soft-RoCE), so owned handles do nothing in a process that did not
//! make them. Asking costs one load: the mark lies in a page that the kernel wipes in every child (`MADV_WIPEONFORK`, `madvise(2)`).
#![expect(unsafe_code, reason = "maps one page with a fork rule that no safe wrapper offers")]

use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process in which an object was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMark(u64);

/// How many forks lie between the first process that used us and this one. Ordinary memory: a child inherits its parent's count.
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl ProcessMark {
    /// The mark of the calling process.
    #[must_use]
    pub fn current() -> Self {
        let word = wiped_on_fork();
        match word.load(Ordering::Relaxed) {
            0 => Self(first_use_in_this_process(word)),
            mark => Self(mark),
        }
    }

    /// Whether the calling process is the one that the mark was taken in.
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

#[cold]
fn first_use_in_this_process(word: &AtomicU64) -> u64 {
    let mark = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, mark, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => mark,
        Err(other_thread_s) => other_thread_s,
    }
}

fn wiped_on_fork() -> &'static AtomicU64 {
    static WORD: OnceLock<&'static AtomicU64> = OnceLock::new();
    WORD.get_or_init(|| {
        // SAFETY: a new private anonymous mapping, wherever the kernel wants it; no memory of ours is replaced.
        let page = unsafe {
            libc::mmap(null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return unnoticed();
        }
        // SAFETY: the range is the mapping made above.
        if unsafe { libc::madvise(page, 4096, libc::MADV_WIPEONFORK) } != 0 {
            return unnoticed();
        }
        let word: NonNull<AtomicU64> = NonNull::new(page).expect("mmap never returns null without MAP_FIXED").cast();
        // SAFETY: page-aligned, mapped readable and writable, never unmapped, zero at first, and accessed only as this atomic.
        unsafe { word.as_ref() }
    })
}

/// A kernel before 4.14, or no memory for one page: then no fork can be noticed, and users keep to what verbs themselves ask of
/// forking programs (`ibv_fork_init(3)`).
fn unnoticed() -> &'static AtomicU64 {
    log::warn!("this kernel cannot wipe a page on fork: a forked child must not use or drop objects of its parent");
    static NEVER_WIPED: AtomicU64 = AtomicU64::new(1);
    &NEVER_WIPED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_of_the_parent_is_not_current_in_a_child() {
        let mark = ProcessMark::current();
        assert!(mark.is_current());
        // SAFETY: the child calls nothing but loads and `_exit(2)`, all async-signal-safe.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let status = i32::from(mark.is_current());
            // SAFETY: `_exit` has no conditions.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: `status` is a valid place for the result.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(waited, pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child took itself for its parent");
        assert!(mark.is_current());
    }
}
