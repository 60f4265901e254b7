//! Call stacks that were recorded: perf.data, traces and folded text.

use std::io::BufReader;
use std::path::Path;

use anyhow::anyhow;

use super::super::failure::Failure;
use super::super::signals::Signals;
use super::super::{observe, process};
use super::{named, Observed, StacksArgs};
use crate::host::{open, Roots};
use crate::profile::{ChainEvent, Profile as Recording, ProfileError};
use crate::session::{Outcome, Session, StackSink};
use crate::stacks::{parse_folded, FoldedError, FoldedStacks, TracedStacks};

/// Events of a trace between two looks at whether to end.
const BATCH: u64 = 1 << 14;

/// Reads what the file is.
pub(super) fn read(args: &StacksArgs, path: &Path) -> Result<Observed, Failure> {
    if observe::is_trace(path) {
        return of_trace(args, path);
    }
    if !path.is_dir() && matches!(Recording::check(path), Err(ProfileError::Unknown { .. })) {
        return of_folded(args, path);
    }
    of_recording(args, path)
}

fn of_recording(args: &StacksArgs, path: &Path) -> Result<Observed, Failure> {
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let stop = || signals.seen();
    let roots = Roots::default();
    let memory = args.tuning.memory(&roots)?;
    let mut recording = process::open(path, &stop)?;
    let wanted = args.event.as_deref();
    let all = recording.stack_events();
    let Some(event) = recording.stack_event(wanted) else {
        let of = wanted.map_or_else(String::new, |name| format!(" of {name}"));
        let but = if all.is_empty() {
            "; `perf record -g` records them".to_owned()
        } else {
            let names: Vec<&str> = all.iter().map(|event| event.name.as_str()).collect();
            format!(", but of {}; -e selects one", names.join(", "))
        };
        return Err(Failure::NoResult(anyhow!("{} has no call chains{of}{but}", path.display())));
    };
    let mut sink = StackSink::of_events(&event.numbers);
    let session = Session::builder().profile(&mut recording).memory(memory).start();
    let outcome = session.map_err(|error| Failure::Unsupported(error.into()))?.run_into(&mut sink, |_| stop());
    if stop() {
        return Err(process::interrupted());
    }
    say_others(&all, &sink, wanted.is_some());
    let begin = recording.recorded_here(&roots);
    let mut profile = named(args, &sink, &outcome, (begin, roots));
    (profile.event, profile.is_clock) = (event.name, event.is_clock);
    Ok(Observed { profile, outcome, damage: recording.damage(), is_trace: false, status: None })
}

/// Says which samples with call stacks were left out, unless the user selected some.
fn say_others(all: &[ChainEvent], sink: &StackSink, is_selected: bool) {
    let left_out = |event: &ChainEvent| {
        let count: u64 = event.numbers.iter().map(|&number| sink.of_other(number)).sum();
        (count > 0).then(|| format!("{count} samples of {}", event.name))
    };
    let left_out: Vec<String> = all.iter().filter_map(left_out).collect();
    if !left_out.is_empty() && !is_selected {
        say!("note: {} are left out: -e selects another event", left_out.join(", "));
    }
}

fn of_trace(args: &StacksArgs, path: &Path) -> Result<Observed, Failure> {
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let mut trace = observe::open_trace(path)?;
    let (mut stacks, mut count) = (TracedStacks::default(), 0u64);
    while let Some(event) = trace.next_event().map_err(|error| observe::failed(&error, path))? {
        stacks.take(&event);
        count += 1;
        if count.is_multiple_of(BATCH) && signals.seen() {
            return Err(process::interrupted());
        }
    }
    if stacks.left_out() > 0 {
        say!("note: {} call stacks are left out: there are too many different ones", stacks.left_out());
    }
    let wanted = args.event.as_deref();
    let Some(profile) = stacks.profile(&trace, wanted) else {
        let kinds: Vec<String> = stacks.kinds(&trace).into_iter().map(|(name, _)| name).collect();
        return Err(Failure::NoResult(match wanted {
            Some(wanted) if !kinds.is_empty() => {
                anyhow!("{} has no call stacks of {wanted}, but of {}", path.display(), kinds.join(", "))
            }
            _ => anyhow!("{} has no call stacks", path.display()),
        }));
    };
    Ok(Observed { profile, outcome: Outcome::default(), damage: trace.damage(), is_trace: true, status: None })
}

fn of_folded(args: &StacksArgs, path: &Path) -> Result<Observed, Failure> {
    let file =
        open::regular(path).map_err(|error| Failure::Usage(anyhow!("cannot open {}: {error}", path.display())))?;
    let FoldedStacks { mut profile, notes } = parse_folded(BufReader::new(file)).map_err(|error| match error {
        FoldedError::Line { line: 1 } => Failure::Usage(anyhow!(
            "{} is none of: a perf.data or a profile of `record`, a trace, folded stacks (its first line is none)",
            path.display()
        )),
        error => Failure::Usage(anyhow!("{}: {error}", path.display())),
    })?;
    for note in notes {
        say!("note: {note}");
    }
    // The text does not say of what it is.
    profile.event = args.event.clone().unwrap_or_else(|| "folded stacks".to_owned());
    Ok(Observed { profile, outcome: Outcome::default(), damage: Vec::new(), is_trace: false, status: None })
}
