//! The thread's `errno`, for providers written in Rust: they answer in the conventions of C.
#![expect(unsafe_code, reason = "errno is a thread-local that libc hands out by pointer")]

use std::ffi::c_int;

/// Sets the calling thread's `errno`.
pub fn set(errno: c_int) {
    // SAFETY: `__errno_location(3)` returns the calling thread's errno, valid and aligned for as long as the thread lives.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: `place` is this thread's own int (see above), and no reference to it exists.
    unsafe { place.write(errno) };
}
