//! Passes the samples of a profile to a sink.

use scxprof::profile::Profile;
use scxprof::session::{Outcome, Sink};
use scxprof::Session;

/// Passes all samples of `profile` to `sink`, within `memory` bytes.
#[allow(clippy::expect_used)]
pub fn replay(profile: &mut Profile, memory: usize, sink: &mut dyn Sink) -> Outcome {
    let session =
        Session::builder().profile(profile).memory(memory).start().expect("a profile needs nothing of the host");
    session.run_into(sink, |_| false)
}
