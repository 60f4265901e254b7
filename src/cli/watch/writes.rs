//! Failed writes of a watch: it reports them and goes on, because space on a full disk may become free.

use super::super::failure::Failure;
use std::collections::BTreeMap;

/// Times that a file could not be written, one after the other, before the watch ends.
const MOST: u32 = 10;

/// How often each file could not be written, one time after the other.
#[derive(Debug, Default)]
pub(super) struct Writes(BTreeMap<&'static str, u32>);

impl Writes {
    /// The message about an attempt to write.
    ///
    /// # Errors
    /// That of the last attempt, if there were too many.
    pub(super) fn note(&mut self, what: &'static str, written: Result<(), Failure>) -> Result<Option<String>, Failure> {
        let Err(error) = written else {
            return Ok(self.0.remove(what).map(|_| format!("{what} could be written again")));
        };
        let count = self.0.entry(what).or_default();
        *count += 1;
        match *count {
            1 => Ok(Some(format!("{what} could not be written, the watch goes on: {}", error.sentence()))),
            MOST.. => Err(error),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_file_may_be_unwritten_nine_times_in_a_row() {
        let mut writes = Writes::default();
        let full = || Err(Failure::NoResult(anyhow!("no space left")));
        for _ in 0..3 {
            let said = writes.note("-o", full()).unwrap().unwrap();
            assert_eq!(said, "-o could not be written, the watch goes on: no space left");
            for _ in 0..8 {
                assert_eq!(writes.note("-o", full()).unwrap(), None);
                // Each counts for itself.
                assert_eq!(writes.note("--state", Ok(())).unwrap(), None);
            }
            assert_eq!(writes.note("-o", Ok(())).unwrap().unwrap(), "-o could be written again");
        }
        for _ in 0..9 {
            writes.note("-o", full()).unwrap();
        }
        assert!(writes.note("-o", full()).is_err());
    }
}
