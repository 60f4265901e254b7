//! The unsuccessful ends of a command.

use std::process::ExitCode;

/// An unsuccessful end, as its exit code and its message.
#[derive(Debug)]
pub(crate) enum Failure {
    /// 1: there is no result, or it could not be written.
    NoResult(anyhow::Error),
    /// 2: the request is invalid.
    Usage(anyhow::Error),
    /// 3: this machine or these rights do not allow it.
    Unsupported(anyhow::Error),
    /// 4: more was lost than allowed; the result was printed.
    Loss(anyhow::Error),
    /// 5: scx_mitosis would reject the configuration on the target host, so no configuration is written; or one is worse than `--at-least`.
    DoesNotFit(anyhow::Error),
    /// The status of the command that was profiled.
    Command(u8),
}

/// How something ended that gives nothing.
pub(crate) type Done = Result<(), Failure>;

impl Failure {
    /// Its message.
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::NoResult(error)
            | Self::Usage(error)
            | Self::Unsupported(error)
            | Self::Loss(error)
            | Self::DoesNotFit(error) => sentence(error),
            Self::Command(status) => format!("the command ended with {status}"),
        }
    }

    pub(super) fn exit(self) -> ExitCode {
        let (error, code) = match self {
            Self::NoResult(error) => (Some(error), 1),
            Self::Usage(error) => (Some(error), 2),
            Self::Unsupported(error) => (Some(error), 3),
            Self::Loss(error) => (Some(error), 4),
            Self::DoesNotFit(error) => (Some(error), 5),
            Self::Command(status) => (None, status),
        };
        if let Some(error) = error {
            say!("error: {}", sentence(&error));
        }
        ExitCode::from(code)
    }
}

/// The error and its causes, each printed once: many of our errors contain the text of their cause.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        use anyhow::Context;
        let cause = || std::io::Error::from_raw_os_error(libc::EACCES);
        let own = crate::host::Error::Read { path: "/x".into(), source: cause() };
        assert_eq!(sentence(&own.into()), "cannot read /x: Permission denied (os error 13)");
        let context = Err::<(), _>(cause()).context("cannot write").unwrap_err();
        assert_eq!(sentence(&context), "cannot write: Permission denied (os error 13)");
    }
}
