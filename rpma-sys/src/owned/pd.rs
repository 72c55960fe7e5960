//! The protection domain.
#![expect(unsafe_code, reason = "calls verbs")]

use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Context, check, leaked};
use crate::bindings::*;
use crate::fork::ProcessMark;
use crate::ret::{errno_ret, null_ret};

/// A protection domain: regions and queue pairs work together only within one. `ibv_alloc_pd(3)`.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<ibv_pd>,
    context: ManuallyDrop<Arc<Context>>,
    mark: ProcessMark,
}

// SAFETY: verbs allow a protection domain to be used from any thread.
unsafe impl Send for Pd {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// As `ibv_alloc_pd(3)`.
    pub fn alloc(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        context.check()?;
        // SAFETY: the context is live.
        let raw = null_ret(|| unsafe { context.provider().ibv_alloc_pd(context.raw().as_ptr()) })?;
        Ok(Arc::new(Self { raw, context: ManuallyDrop::new(Arc::clone(context)), mark: ProcessMark::current() }))
    }

    /// Its device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn check(&self) -> io::Result<()> {
        check(self.mark)
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if !self.mark.is_current() {
            return;
        }
        // SAFETY: live, and every region and queue pair in it held an `Arc` of it and is gone.
        let rc = unsafe { self.context.provider().ibv_dealloc_pd(self.raw.as_ptr()) };
        match errno_ret(rc) {
            // SAFETY: not used again; the field is dropped here only.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.context) },
            Err(e) => leaked("a protection domain", &e),
        }
    }
}
