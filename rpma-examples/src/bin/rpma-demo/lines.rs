//! What a target and a writer tell the process that started them, as lines of their standard output among those meant for people.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::record::RunId;

/// A line for the process that started us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// The target can be connected to.
    Listening { addr: SocketAddr, run: RunId },
    /// As many records, from the first one on, are acknowledged: the flush of each has completed.
    Acknowledged(u64),
    /// All records are acknowledged, and the writer waits for the end of the connection.
    Finished,
}

/// No line of people's begins so.
const MARK: char = '@';

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening { addr, run } => write!(f, "{MARK}listening {addr} {run}"),
            Self::Acknowledged(records) => write!(f, "{MARK}acknowledged {records}"),
            Self::Finished => write!(f, "{MARK}finished"),
        }
    }
}

/// A line is none of ours: it is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForPeople;

impl FromStr for Line {
    type Err = ForPeople;

    fn from_str(line: &str) -> Result<Self, ForPeople> {
        let mut words = line.strip_prefix(MARK).ok_or(ForPeople)?.split(' ');
        let parsed = match words.next() {
            Some("listening") => {
                let addr = words.next().and_then(|word| word.parse().ok()).ok_or(ForPeople)?;
                let run = words.next().and_then(|word| word.parse().ok()).ok_or(ForPeople)?;
                Self::Listening { addr, run }
            }
            Some("acknowledged") => Self::Acknowledged(words.next().and_then(|word| word.parse().ok()).ok_or(ForPeople)?),
            Some("finished") => Self::Finished,
            _ => return Err(ForPeople),
        };
        if words.next().is_none() { Ok(parsed) } else { Err(ForPeople) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_parses_as_it_was_printed() {
        let lines = [
            Line::Listening { addr: "10.0.0.1:7204".parse().unwrap(), run: RunId(1) },
            Line::Listening { addr: "[fe80::1%3]:7204".parse().unwrap(), run: RunId(u64::MAX) },
            Line::Acknowledged(0),
            Line::Acknowledged(u64::MAX),
            Line::Finished,
        ];
        for line in lines {
            assert_eq!(line.to_string().parse(), Ok(line), "{line}");
        }
    }

    #[test]
    fn other_lines_are_for_people() {
        for line in
            ["", "wrote: 1 record", "@", "@listening", "@acknowledged", "@acknowledged -1", "@finished now", "acknowledged 5"]
        {
            assert_eq!(line.parse::<Line>(), Err(ForPeople), "{line}");
        }
    }
}
