//! Errors of tools and resources: a kind that a program can compare, a sentence, and what to do.

use serde_json::{json, Value};

use crate::cli::failure::Failure;
use scxprof_base::escape;

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    InvalidArguments,
    UnknownRecording,
    RecordingChanged,
    OutsideRoot,
    NotFound,
    NoResult,
    Unsupported,
    TooLarge,
    TimedOut,
    OutOfMemory,
    Cancelled,
    Busy,
    NotRunning,
    ReadOnly,
    Exists,
    CursorExpired,
    Internal,
}

impl Kind {
    /// As in `error.kind`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InvalidArguments => "invalid_arguments",
            Self::UnknownRecording => "unknown_recording",
            Self::RecordingChanged => "recording_changed",
            Self::OutsideRoot => "outside_root",
            Self::NotFound => "not_found",
            Self::NoResult => "no_result",
            Self::Unsupported => "unsupported",
            Self::TooLarge => "too_large",
            Self::TimedOut => "timed_out",
            Self::OutOfMemory => "out_of_memory",
            Self::Cancelled => "cancelled",
            Self::Busy => "busy",
            Self::NotRunning => "not_running",
            Self::ReadOnly => "read_only",
            Self::Exists => "exists",
            Self::CursorExpired => "cursor_expired",
            Self::Internal => "internal",
        }
    }

    /// What helps.
    fn advice(self) -> &'static str {
        match self {
            Self::InvalidArguments => "correct the arguments; tools/list has their schema",
            Self::UnknownRecording => "call open_recording with the path again, and use the id that it returns",
            Self::RecordingChanged => {
                "the files changed since they were opened: call open_recording with the path again"
            }
            Self::OutsideRoot => {
                "name a path below the root directory of the server; its user chooses that by `scxprof mcp --root DIR`"
            }
            Self::NotFound => "check the path; it is relative to the root directory of the server",
            Self::NoResult => "recording_info says what the recording has; choose another tool, source or selection",
            Self::Unsupported => "the tool doctor says what this host and the rights of the server allow",
            Self::TooLarge => "select less: fewer analysers, a shorter time, one process or one CPU",
            Self::TimedOut => "select less, such as a shorter time, or ask for a larger time_limit_s",
            Self::OutOfMemory => "select less; the user can raise the limit by `scxprof mcp --max-memory MIB`",
            Self::Cancelled => "call it again if it is still wanted",
            Self::Busy => "wait for what runs, or stop it, and call again",
            Self::NotRunning => "start it first",
            Self::ReadOnly => "no files are written; the user can allow it by `scxprof mcp --allow-write DIR`",
            Self::Exists => "existing files are not replaced: choose another name",
            Self::CursorExpired => "call it again without a cursor",
            Self::Internal => "this is a bug in scxprof; the log of the server on stderr may say more",
        }
    }
}

/// The error of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolError {
    pub(super) kind: Kind,
    message: String,
}

impl ToolError {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The sentence, escaped: it may contain names of files.
    pub(super) fn message(&self) -> String {
        escape::line(&self.message).into_owned()
    }

    /// As it is answered.
    pub(super) fn json(&self) -> Value {
        json!({ "kind": self.kind.name(), "message": self.message(), "do": self.kind.advice() })
    }
}

impl From<Failure> for ToolError {
    fn from(failure: Failure) -> Self {
        let kind = match failure {
            Failure::Usage(_) => Kind::InvalidArguments,
            Failure::Unsupported(_) => Kind::Unsupported,
            Failure::NoResult(_) | Failure::Loss(_) | Failure::DoesNotFit(_) | Failure::Command(_) => Kind::NoResult,
        };
        Self::new(kind, failure.sentence())
    }
}
