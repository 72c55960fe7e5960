//! The only code that touches registered memory: accesses to 8 bytes, write-back, and system calls that are given its addresses.
//!
//! A program or a peer may write the memory at any time, so there is no reference into it anywhere. Memory of a file can go away under
//! its mapping, and a plain load then raises SIGBUS: such memory is reached by system calls, which answer EFAULT.
#![expect(unsafe_code, reason = "raw accesses to memory that the program registered, whose registration `Touch` proves")]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::memory::Touch;
use crate::rc::MemoryFault;

/// The most pieces that one system call moves: some hundred short messages. `IOV_MAX` is 1024.
pub(crate) const MAX_PIECES: usize = 256;

/// A piece of memory for a system call, set aside by a [`Touch`] that outlives the call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Piece(libc::iovec);

impl Piece {
    /// `len_bytes` bytes at `addr`, which lie inside the touched region.
    pub(crate) fn registered(touch: &Touch<'_>, addr: u64, len_bytes: usize) -> Self {
        Self(libc::iovec { iov_base: pointer(touch, addr).cast(), iov_len: len_bytes })
    }

    /// Bytes of ours to send.
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Self(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() })
    }

    /// Room of ours to receive.
    pub(crate) fn room(room: &mut [u8]) -> Self {
        Self(libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() })
    }
}

fn pointer(touch: &Touch<'_>, addr: u64) -> *mut u8 {
    let host = usize::try_from(touch.host(addr)).expect("an address of this process");
    // The program exposed it when it registered the memory.
    std::ptr::with_exposed_provenance_mut(host)
}

fn message(pieces: &[Piece]) -> libc::msghdr {
    // SAFETY: plain integers and pointers, for which zeros mean "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _;
    message
}

fn result(rc: isize) -> io::Result<usize> {
    usize::try_from(rc).map_err(|_| io::Error::last_os_error())
}

/// Receives into `pieces`, without waiting: `recvmsg(2)`.
///
/// # Safety
///
/// What the pieces were made from is set aside still, and the room of ours is borrowed by nobody else.
pub(crate) unsafe fn receive(socket: BorrowedFd<'_>, pieces: &[Piece]) -> io::Result<usize> {
    // SAFETY: the contract of this function.
    unsafe { receive_with(socket, pieces, libc::MSG_DONTWAIT) }
}

/// As [`receive`], and leaves in the socket what it copies.
///
/// # Safety
///
/// As for [`receive`].
pub(crate) unsafe fn peek(socket: BorrowedFd<'_>, pieces: &[Piece]) -> io::Result<usize> {
    // SAFETY: the contract of this function.
    unsafe { receive_with(socket, pieces, libc::MSG_DONTWAIT | libc::MSG_PEEK) }
}

/// # Safety
///
/// As for [`receive`].
unsafe fn receive_with(socket: BorrowedFd<'_>, pieces: &[Piece], flags: c_int) -> io::Result<usize> {
    let mut message = message(pieces);
    calls::count();
    // SAFETY: an open descriptor; the kernel checks each address, and each is memory that may be written: registered, or ours (contract
    // above). A caller that wants to read registered memory only is given no right to fill it by the table of keys.
    result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) })
}

/// Sends `pieces`, without waiting: `sendmsg(2)`.
///
/// # Safety
///
/// What the pieces were made from is set aside or borrowed still.
pub(crate) unsafe fn send(socket: BorrowedFd<'_>, pieces: &[Piece]) -> io::Result<usize> {
    let message = message(pieces);
    calls::count();
    // SAFETY: an open descriptor; the kernel checks each address, and only reads. A process that did not ask for SIGPIPE gets none.
    result(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

/// Stores at `addr` what an atomic operation found, or the part of it that goes there: 8 bytes at most, which came in a header. Payload is
/// moved by system calls alone, between the socket and where it belongs.
pub(super) fn store_original(touch: &Touch<'_>, addr: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
    if bytes.len() > 8 {
        return Err(MemoryFault);
    }
    let to = pointer(touch, addr);
    if touch.can_fault() {
        return cross(to, bytes.as_ptr().cast_mut(), bytes.len(), libc::SYS_process_vm_writev);
    }
    // SAFETY: `to` is registered and set aside, and cannot fault (its mapping has no file); `bytes` is ours.
    unsafe { copy(to, bytes.as_ptr(), bytes.len()) };
    Ok(())
}

/// Copies between memory of this process by a system call, which answers EFAULT where a plain access would raise SIGBUS.
fn cross(registered: *mut u8, ours: *mut u8, len_bytes: usize, call: libc::c_long) -> Result<(), MemoryFault> {
    if len_bytes == 0 {
        return Ok(());
    }
    let ours_piece = libc::iovec { iov_base: ours.cast(), iov_len: len_bytes };
    let piece = libc::iovec { iov_base: registered.cast(), iov_len: len_bytes };
    // SAFETY: the call has no conditions.
    let own = unsafe { libc::getpid() };
    // SAFETY: `process_vm_readv(2)`: the kernel checks each address. `ours` is a whole buffer of ours, which its caller borrows.
    let moved = unsafe { libc::syscall(call, own, &raw const ours_piece, 1_usize, &raw const piece, 1_usize, 0_usize) };
    if usize::try_from(moved) == Ok(len_bytes) {
        return Ok(());
    }
    let denied = moved < 0 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS));
    if !denied {
        return Err(MemoryFault);
    }
    // A sandbox forbids the call: what remains is the plain access, and its risk.
    let (to, from) = if call == libc::SYS_process_vm_readv { (ours, registered) } else { (registered, ours) };
    // SAFETY: as for the call above; `Touch` proves the registration.
    unsafe { copy(to, from, len_bytes) };
    Ok(())
}

/// Copies as others may write: with no reference, and in a way that the compiler must take as an access of unknown contents.
///
/// # Safety
///
/// Both ranges are mapped for what is done with them, and at most one of them is shared with others.
unsafe fn copy(to: *mut u8, from: *const u8, len_bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the ranges are as the contract says; the string instruction reads and writes exactly them, and the direction flag is
    // clear by the ABI.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len_bytes => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for i in 0..len_bytes {
        use std::sync::atomic::AtomicU8;
        // SAFETY: within the range of the contract; atomic, since others may write.
        let byte = unsafe { AtomicU8::from_ptr(from.add(i).cast_mut()) }.load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(to.add(i)) }.store(byte, Ordering::Relaxed);
    }
}

/// The 8 bytes at `addr`, a multiple of 8, after a look whether they are there.
fn word<'a>(touch: &'a Touch<'_>, addr: u64) -> Result<&'a AtomicU64, MemoryFault> {
    let at = pointer(touch, addr);
    if touch.can_fault() {
        // Between this and the access the file can still be truncated; a plain access to it is the program's risk too.
        let mut seen = [0; 8];
        cross(at, seen.as_mut_ptr(), seen.len(), libc::SYS_process_vm_readv)?;
    }
    let at: *mut u64 = at.cast();
    if !at.is_aligned() {
        // A region whose addresses for peers were chosen by the program.
        return Err(MemoryFault);
    }
    // SAFETY: aligned, registered, and set aside while the touch lives. Everyone else accesses it as memory that others may write.
    Ok(unsafe { AtomicU64::from_ptr(at) })
}

/// Compares and swaps the word at `addr`; returns what it was.
pub(crate) fn compare_swap(touch: &Touch<'_>, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
    let (Ok(original) | Err(original)) = word(touch, addr)?.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
    Ok(original)
}

/// Adds to the word at `addr`; returns what it was.
pub(crate) fn fetch_add(touch: &Touch<'_>, addr: u64, add: u64) -> Result<u64, MemoryFault> {
    Ok(word(touch, addr)?.fetch_add(add, Ordering::SeqCst))
}

/// Stores the word at `addr`, with everything placed before visible before it.
pub(crate) fn store(touch: &Touch<'_>, addr: u64, value: [u8; 8]) -> Result<(), MemoryFault> {
    word(touch, addr)?.store(u64::from_ne_bytes(value), Ordering::SeqCst);
    Ok(())
}

/// Writes `len_bytes` bytes at `host`, an address of this process inside the touched region, back to their file, and waits: `msync(2)`.
pub(crate) fn sync(_touch: &Touch<'_>, host: u64, len_bytes: u64) -> Result<(), MemoryFault> {
    let page = rustix::param::page_size() as u64;
    let start = host / page * page;
    let addr: *mut c_void = std::ptr::with_exposed_provenance_mut(usize::try_from(start).map_err(|_| MemoryFault)?);
    let len = usize::try_from(host + len_bytes - start).map_err(|_| MemoryFault)?;
    // SAFETY: the call changes no memory, and the kernel checks the range.
    let rc: c_int = unsafe { libc::msync(addr, len, libc::MS_SYNC) };
    if rc == 0 { Ok(()) } else { Err(MemoryFault) }
}

/// Writes the processor's cache back for `len_bytes` bytes at `host`, an address of this process inside the touched region.
pub(crate) fn write_back(_touch: &Touch<'_>, host: u64, len_bytes: u64) {
    const LINE: u64 = 64;
    let mut line = host / LINE * LINE;
    while line < host + len_bytes {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a line of registered memory that is set aside; `clflush`, which every x86-64 processor has, changes no contents.
        unsafe {
            std::arch::x86_64::_mm_clflush(std::ptr::with_exposed_provenance(usize::try_from(line).expect("an address")));
        };
        line += LINE;
    }
    // `clflush` is ordered with stores; the fence keeps what follows behind it.
    fence(Ordering::SeqCst);
}

/// How many system calls moved data, for tests to see.
pub(crate) mod calls {
    #[cfg(test)]
    use std::cell::Cell;

    #[cfg(test)]
    thread_local! {
        static MADE: Cell<u64> = const { Cell::new(0) };
    }

    /// Counts one.
    pub(super) fn count() {
        #[cfg(test)]
        MADE.set(MADE.get() + 1);
    }

    /// How many this thread has made since it was asked last.
    #[cfg(test)]
    pub(crate) fn made() -> u64 {
        MADE.take()
    }
}
