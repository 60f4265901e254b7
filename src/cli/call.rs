//! A command that runs for `scxprof mcp` in a thread of its own: what it prints, what it says and how it is stopped belong to the
//! call, not to the process.

use std::cell::RefCell;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use tempfile::SpooledTempFile;

/// Bytes of a result that are kept in memory before they go to a temporary file.
const IN_MEMORY: usize = 8 << 20;
/// Notes of a call that are kept, and bytes of each.
const MAX_NOTES: usize = 100;
const MAX_NOTE: usize = 2000;

thread_local! {
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

/// The call that this thread works for.
struct Call {
    stop: Arc<AtomicBool>,
    printed: SpooledTempFile,
    size: u64,
    most: u64,
    notes: Vec<String>,
}

/// The output of a command beside its exit code.
#[derive(Debug)]
pub(super) struct Called {
    /// The text that it would have printed to stdout, from its beginning.
    pub(super) printed: SpooledTempFile,
    /// The bytes of that.
    pub(super) size: u64,
    /// The lines that it would have printed to stderr.
    pub(super) notes: Vec<String>,
}

/// Ends the call of this thread, also after a panic.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        CALL.with(|call| *call.borrow_mut() = None);
    }
}

/// Runs `work` as a call: it ends early once `stop` is set, as after Ctrl-C, and it prints no more than `most` bytes. What does not fit
/// into memory goes to a temporary file without a name in `spool`, or else in the directory for temporary files.
///
/// # Errors
/// The result cannot be read from its temporary file.
pub(super) fn run<T>(
    stop: Arc<AtomicBool>,
    most: u64,
    spool: Option<&Path>,
    work: impl FnOnce() -> T,
) -> io::Result<(T, Called)> {
    let printed = match spool {
        Some(dir) => SpooledTempFile::new_in(IN_MEMORY, dir),
        None => SpooledTempFile::new(IN_MEMORY),
    };
    let call = Call { stop, printed, size: 0, most, notes: Vec::new() };
    CALL.with(|own| *own.borrow_mut() = Some(call));
    let guard = Guard;
    let given = work();
    let call = CALL.with(|own| own.borrow_mut().take());
    drop(guard);
    let Some(Call { mut printed, size, notes, .. }) = call else {
        return Err(io::Error::other("a call within a call"));
    };
    printed.rewind()?;
    Ok((given, Called { printed, size, notes }))
}

/// The flag that ends the call of this thread; `None` outside of calls.
pub(super) fn stop() -> Option<Arc<AtomicBool>> {
    CALL.with(|call| call.borrow().as_ref().map(|call| Arc::clone(&call.stop)))
}

/// True in a call, which no terminal belongs to.
pub(super) fn is_running() -> bool {
    CALL.with(|call| call.borrow().is_some())
}

/// Keeps a line; false outside of calls.
pub(super) fn note(line: &str) -> bool {
    CALL.with(|call| match call.borrow_mut().as_mut() {
        Some(call) => {
            let line = line.strip_prefix("note: ").unwrap_or(line);
            if call.notes.len() < MAX_NOTES && !call.notes.iter().any(|note| note == line) {
                let end = (0..=MAX_NOTE).rev().find(|&end| line.is_char_boundary(end.min(line.len())));
                call.notes.push(line.get(..end.unwrap_or(0).min(line.len())).unwrap_or_default().to_owned());
            }
            true
        }
        None => false,
    })
}

/// Takes what goes to stdout in this thread.
pub(super) struct Printer;

impl Write for Printer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        CALL.with(|call| match call.borrow_mut().as_mut() {
            Some(call) => {
                if call.stop.load(Ordering::Relaxed) {
                    return Err(io::Error::other("the call was stopped"));
                }
                call.size += bytes.len() as u64;
                if call.size > call.most {
                    return Err(io::Error::other(format!("the result has more than {} MiB", call.most >> 20)));
                }
                call.printed.write(bytes)
            }
            None => io::stdout().lock().write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        if is_running() {
            return Ok(());
        }
        io::stdout().lock().flush()
    }
}

impl Called {
    /// All that was printed, as text.
    ///
    /// # Errors
    /// It cannot be read from its temporary file, or is no text.
    pub(super) fn text(&mut self) -> io::Result<String> {
        let mut text = String::new();
        self.printed.rewind()?;
        self.printed.read_to_string(&mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_takes_what_is_printed_and_said_in_its_thread() {
        assert!(!is_running() && !note("outside"));
        let stop = Arc::new(AtomicBool::new(false));
        let (given, mut called) = run(Arc::clone(&stop), 8, None, || {
            assert!(note(&"é".repeat(MAX_NOTE)) && is_running());
            assert!(!std::thread::spawn(is_running).join().unwrap(), "another thread is not in the call");
            Printer.write_all(b"12345678").unwrap();
            let error = Printer.write_all(b"9").unwrap_err().to_string();
            self::stop().unwrap().store(true, Ordering::Relaxed);
            error
        })
        .unwrap();
        assert_eq!((given.as_str(), called.text().unwrap().as_str()), ("the result has more than 0 MiB", "12345678"));
        assert_eq!((called.notes.len(), called.notes[0].len()), (1, MAX_NOTE));
        assert!(stop.load(Ordering::Relaxed) && !is_running());
    }

    #[test]
    fn a_call_ends_with_a_panic() {
        let panics = || run(Arc::default(), 8, None, || panic!("in a call"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(!is_running());
    }
}
