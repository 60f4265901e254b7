//! How the result of a command is printed: as text for people, or as JSON.

use anyhow::Context;
use serde::Serialize;

use super::failure::Failure;
use scxprof_base::escape;

/// What `--json` chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

impl Format {
    pub(super) fn new(is_json: bool) -> Self {
        if is_json {
            Self::Json
        } else {
            Self::Text
        }
    }

    /// The result in this form; only this form is made. The text is escaped for a terminal here, JSON where it is made.
    pub(super) fn render(
        self,
        json: impl FnOnce() -> anyhow::Result<String>,
        text: impl FnOnce() -> String,
    ) -> Result<String, Failure> {
        match self {
            Self::Json => json().context("cannot write the result").map_err(Failure::NoResult),
            Self::Text => Ok(escape::lines(&text())),
        }
    }
}

/// A document on several lines, escaped for a terminal.
pub(super) fn json(document: &impl Serialize) -> anyhow::Result<String> {
    Ok(escape::json(serde_json::to_string_pretty(document)?) + "\n")
}
