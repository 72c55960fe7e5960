//! Panics of ours, which are bugs: they end what they are about, and nothing else.
#![forbid(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does `work`. `None`: it panicked, which the log says, and what it was about is in a state that nobody knows.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The caller gives up what the work has touched, so nobody sees it half changed.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(panic) => {
            // Whatever logs may be what panicked.
            let _ = catch_unwind(AssertUnwindSafe(|| log::error!("a bug of rpma-soft, please report it: {}", words_of(&*panic))));
            // And what was thrown may throw when it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
            None
        }
    }
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_is_nothing_and_its_words_are_kept_for_the_log() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| panic!("on purpose")), None::<()>);
        let thrown = |panic: fn()| catch_unwind(panic).unwrap_err();
        assert_eq!(words_of(&*thrown(|| panic!("fixed"))), "fixed");
        assert_eq!(words_of(&*thrown(|| panic!("made of {}", 2))), "made of 2");
        assert_eq!(words_of(&*thrown(|| std::panic::panic_any(7))), "a panic without words");
    }
}
