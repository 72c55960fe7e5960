//! How an error is told to a person.

use std::error::Error;
use std::fmt;

/// An error with everything that caused it, each cause on a line of its own.
///
/// ```
/// use std::io;
/// use rpma_examples::Chain;
///
/// let inner = io::Error::other("no such thing");
/// let outer = io::Error::other(Wrapped(inner));
/// # #[derive(Debug)]
/// # struct Wrapped(io::Error);
/// # impl std::fmt::Display for Wrapped {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("cannot do it") }
/// # }
/// # impl std::error::Error for Wrapped {
/// #     fn source(&self) -> Option<&(dyn std::error::Error + 'static)> { Some(&self.0) }
/// # }
/// assert_eq!(Chain(&outer).to_string(), "cannot do it\n  caused by: no such thing");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, "\n  caused by: {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
